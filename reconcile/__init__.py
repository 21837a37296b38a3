"""Reconciliation: the consistency machine, the operator host's strategies, SOutput, switching and recovery; `Instance` joins
them.

Pure; imports boreal, sunion and operators.
"""
