"""A session is one client connection's transaction, settings, prepared statements and portals. A
statement that finds everything at hand runs synchronously, from the bytes of its message to the
bytes of its answer; no task is made for it.
"""
