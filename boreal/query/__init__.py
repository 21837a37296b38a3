"""Queries: the specification and its refusals, expressions, the plan, the planner and the Python builder.

Pure, but for `load_query`, which reads the file that it is given; imports boreal.model only.
"""
