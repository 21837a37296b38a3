"""Logs and checkpoint stores: what every kind of them offers, the kinds that are in memory, and where
a restart begins by what they hold.

Pure; kinds that touch a disk, Kafka or Redis are in services.storage.
"""
