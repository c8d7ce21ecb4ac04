"""Pages are folded from the log: records wait in memory by page until the background work applies
them and stores the page. It never goes beyond the mark that the writer has announced, so that a
reader gets a page exactly as of its own mark, or is told that its mark is too old.
"""
