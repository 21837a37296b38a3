"""Reconciliation: the consistency machine, the strategies of the operator host, SOutput, switching between replicas, and
recovery. `Instance` joins them.

The code is pure: it does no I/O and reads no clock. It imports boreal, sunion and operators only.
"""
