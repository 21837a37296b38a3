"""The services: what touches Kafka, disks and Redis, and the processes that run a deployed query.

Touches what each folder names. In order: kafka, storage, hosting, then source, node, egress and monitor, then worker and stack.
"""
