"""Kafka: settings, clients, topics, query and status records, control messages, and the clock that follows the broker.

Uses Kafka and environment variables.
"""
