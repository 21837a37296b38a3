"""The simulator: random queries and faults over the production objects, an oracle, the invariants, and mutants that it must
catch.

No input or output; one seed always gives the same trace.
"""
