"""The control plane decides who is what: it starts the processes, watches them, raises the epoch
and promotes a reader when the writer is gone. It may be killed at any time, and the others go on.
"""
