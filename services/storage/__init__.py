"""Storage: logs in Kafka and in files, checkpoints in Redis and in files.

Touches Kafka, Redis and disks.
"""
