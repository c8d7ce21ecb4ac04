"""Analytics runs what our own executor does not: joins, subqueries, CTEs, windows, set operations.
The tables' columns are read at the statement's snapshot, put into a bounded buffer, and an embedded
DuckDB runs the query over them in a worker thread.
"""
