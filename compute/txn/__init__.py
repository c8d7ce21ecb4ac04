"""Transactions buffer their writes until commit. Locks, conflict checks and commit are here, and
the recovery of a promoted node, which is short: nothing uncommitted was ever in a page.
"""
