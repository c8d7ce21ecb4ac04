"""SQL from text to rows: types, catalog, planner, plans and their execution. Parsed statements are
kept by their text and the version of the catalog.
"""
