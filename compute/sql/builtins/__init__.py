"""The builtins are the functions that SQL calls by name, by subject. Each module gives a table of
signatures: argument types, result type, and a plain Python function of values that are not NULL.
"""
