"""Faults that really happen to real files, processes and ports. See docs/testing.md."""
