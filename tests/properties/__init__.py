"""Properties that hold for any input, searched with hypothesis: same bytes on both sides of the
redo log, key order equal to value order, no flipped byte unnoticed.
"""
