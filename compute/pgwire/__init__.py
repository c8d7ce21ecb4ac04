"""PostgreSQL's wire protocol, version 3, without I/O: bytes of a client in, messages out, and
answers back to bytes.
"""
