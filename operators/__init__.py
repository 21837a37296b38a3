"""Operators over Arrow batches, a fragment's graph of operators, and their state in layers.

Pure. Imports boreal only.
"""
