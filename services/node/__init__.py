"""The node: one replica of a query, all its instances, in one process."""
