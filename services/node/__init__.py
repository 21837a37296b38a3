"""The node process: one replica of a query, an instance for each shard of each fragment.

Touches Kafka and Redis through services.hosting and services.storage.
"""
