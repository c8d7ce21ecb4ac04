"""Catalogs are relations that no tree holds: pg_catalog, information_schema, and polarless itself.
Each is a function from what the node knows to rows, made anew for the statement that asks.
"""
