"""The simulator: random queries and faults over the production objects, an oracle, the invariants, and mutants that it must
catch.

Touches processor time only; one seed always gives the same trace.
"""
