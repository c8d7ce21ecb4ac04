"""Tests, by the cheapest means that can show the fault. The net under all of them is `conftest.py`:
costly checks on, asyncio in debug mode, and an unexpected log record fails the test.
"""
