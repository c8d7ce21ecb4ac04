"""The fabric: verbs, registered memory, both ends of a connection."""
