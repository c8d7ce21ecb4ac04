"""Unit tests of one folder."""
