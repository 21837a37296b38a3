"""The monitor process: collects statuses, keeps claims on logs, requests trims, and drops old checkpoints.

Touches Kafka and Redis; its decisions are made in deployment.
"""
