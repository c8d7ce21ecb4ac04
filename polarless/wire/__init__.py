"""The wire is what the processes say to each other, as bytes and nothing else: frames, messages,
and the state of one connection as a table. No sockets here; bytes go in and messages come out.
"""
