"""The whole cluster in one event loop with virtual time, faults and one seed.

The nodes are the objects that run in production; what is simulated is their `World`: the network,
clocks, randomness, disks and shared memory, and the processes that they live in.
"""
