"""The proxy is where clients connect: it keeps their sessions while compute nodes come and go.

It speaks to clients as PostgreSQL does and to compute nodes by `polarless.wire.relay`, many
sessions over one connection, and reads no more than message boundaries while all is well.
"""
