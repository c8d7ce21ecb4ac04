"""Tests of compute/sql on an engine over in-memory pools."""
