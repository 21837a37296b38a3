"""The embedded driver: whole queries in one process, over real, skipped or simulated time, with sources from
files and scripted faults.

Touches files and the clock; no network.
"""
