"""What should run where, and what that means: layout, supervision, claims on logs, the state of a query, clocks and their skew.

Pure; services perform what is decided here.
"""
