"""Operators over Arrow batches, a fragment's graph of them, and their state in layers.

Pure; imports boreal only.
"""
