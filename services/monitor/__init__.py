"""The monitor process: gathers statuses, keeps claims on logs, trims, and drops old checkpoints.

Touches Kafka and Redis; what it decides is in deployment.
"""
