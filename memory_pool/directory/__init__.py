"""The directory is the home's memory: addresses (which slot a page is in), references (who holds a
copy of it) and staleness (which copy is old, and since when). Plain tables without a clock.
"""
