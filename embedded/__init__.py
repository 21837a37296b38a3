"""The embedded driver: it runs whole queries in one process, in real, skipped or modelled time, with input from files and
scripted faults.

Touches files and the clock; no network.
"""
