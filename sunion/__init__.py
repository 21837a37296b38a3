"""SUnion: puts the tuples of several streams into one deterministic order, and decides when a bucket may leave.

Pure; imports boreal only.
"""
