"""The codec of the PostgreSQL protocol."""
