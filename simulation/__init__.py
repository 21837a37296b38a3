"""The simulator: random queries and faults over the production objects, an oracle, the invariants, and mutants that it must
catch.

Touches nothing but processor time; one seed gives one trace.
"""
