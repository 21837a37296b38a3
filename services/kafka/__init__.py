"""Kafka: settings, clients, topics, the records of queries and statuses, control messages, and the clock that the broker keeps.

Touches Kafka and environment variables.
"""
