"""Contracts: what every implementation of a Protocol has to do, written once and run against each,
fakes and fault injectors included.
"""
