"""Compute runs statements on cached pages and holds nothing durable. One node writes (RW), any
number read (RO), and a reader can be promoted at any time. Each is one event loop without latches.
"""
