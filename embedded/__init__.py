"""The embedded driver: whole queries in one process, over real, skipped or simulated time, with sources from
files, scripted faults, and logs and checkpoints in memory or in files.

Touches files and the clock; no network.
"""
