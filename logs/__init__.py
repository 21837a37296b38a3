"""Logs and checkpoint stores: their interfaces, the implementations in memory, and where a restart begins.

Pure. Implementations over disks, Kafka and Redis are in services.storage.
"""
