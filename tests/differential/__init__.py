"""Differential tests: the same statements on PostgreSQL 15 and here, and their rows, column names,
types, command tags and SQLSTATEs compared. What is known to differ says so where it stands, with
the reason; when it no longer does, that fails.
"""
