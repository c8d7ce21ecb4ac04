"""Backends put log and pages on a real disk, or on one that fails on purpose. They implement two
small Protocols, and nothing above them knows that there are files.
"""
