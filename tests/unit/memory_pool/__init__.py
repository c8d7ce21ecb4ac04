"""The memory pool, module by module."""
