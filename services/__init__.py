"""The services: what touches Kafka, disks and Redis, and the processes that run a deployed query.

In order: kafka, storage, hosting, then source, node, egress and monitor, then stack.
"""
