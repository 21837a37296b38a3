"""The embedded driver: it runs whole queries in one process, in real, skipped or modelled time, with input from files,
scripted faults, and logs and checkpoints in memory or in files.

Touches files and the clock; no network.
"""
