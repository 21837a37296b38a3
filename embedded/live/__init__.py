"""Queries that run for good in one process: `LiveEngine`, a machine without a thread, and `LiveThread`, which drives it.

Touches files; `LiveThread` also a thread and the clock. No network.
"""
