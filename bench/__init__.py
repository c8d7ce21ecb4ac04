"""Benchmarks, each with its seed, commit and machine beside the numbers."""
