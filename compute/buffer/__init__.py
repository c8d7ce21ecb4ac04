"""The buffer keeps decoded pages within a budget of bytes, and keeps them true: on a reader every
frame is the page as of the reader's mark, since an invalidation takes frames out before the commit
behind it becomes visible.
"""
