"""Storage holds the one thing that must not be lost, the redo log, and folds pages from it in the
background. Appending is what makes a commit durable; a page can be read as of any mark that is
still of use to a reader.
"""
