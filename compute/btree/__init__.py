"""A B+tree over cached pages. Each page carries its lower and upper bound, so that a descent that
went wrong shows at once. Changes are redo records, and a split is part of the commit that caused
it.
"""
