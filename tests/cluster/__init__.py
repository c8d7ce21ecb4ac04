"""Tests on real processes with real clients: pgbench, psql, `kill -9`, SIGSTOP. Each leaves no
process and no shared memory behind.
"""
