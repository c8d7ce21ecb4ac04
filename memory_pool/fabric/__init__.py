"""The fabric gives remote memory the meaning it has on RDMA hardware: READ, WRITE, CAS and
FETCH_ADD on registered regions, executed at the target without asking any page logic. On one host a
reader maps the same memory and copies a page without waking anybody.
"""
