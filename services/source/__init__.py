"""The source process: the papers' data-source proxy, which copies rows from a user's topic or HTTP to its stream's log.

Touches Kafka, HTTP, and a spool on disk.
"""
