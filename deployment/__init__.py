"""Which processes run where, and their state: layout, supervision, claims on logs, the state of a query, clocks and their skew.

Pure. The services carry out the decisions that are made here.
"""
