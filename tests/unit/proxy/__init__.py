"""The proxy, whose clients and compute nodes are played by the test."""
