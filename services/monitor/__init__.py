"""The monitor: one process that watches all queries. It decides what may be trimmed, and says how each query is."""
