"""The home's tables."""
