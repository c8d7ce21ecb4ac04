"""The client is what a program imports: `polarless.connect()` gives a key-value view of the tables
with SQL beside it, a thin layer over a PostgreSQL driver.
"""
