"""The memory pool is a page cache that all compute nodes share and that any of its nodes may lose
at any time. Memory nodes lend slots and know nothing of pages; the home, a role one of them takes,
knows which page is in which slot, who holds a copy, and which copy is stale.
"""
