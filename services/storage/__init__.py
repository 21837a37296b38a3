"""Storage: logs in Kafka, checkpoints in Redis.

Touches Kafka and Redis.
"""
