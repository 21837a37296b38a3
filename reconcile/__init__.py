"""Reconciliation: the consistency machine, the strategies of the operator host, SOutput, switching between replicas, and
recovery. `Instance` joins them.

Pure. Imports boreal, sunion and operators only.
"""
