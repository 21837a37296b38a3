"""Storage: logs in Kafka, checkpoints in Redis.

Uses Kafka and Redis.
"""
