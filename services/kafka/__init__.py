"""Kafka: settings, clients, topics, query and status records, control messages, and the clock that follows the broker.

Touches Kafka and environment variables.
"""
