"""Unit tests mirror the tree: one file for each module, cores mostly, as plain calls."""
