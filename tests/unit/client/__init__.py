"""The client library over a fake connection pool."""
