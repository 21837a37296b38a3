"""Hosting: code that all processes of a query share, and the threads that run an instance over logs.

Touches Kafka through services.storage, threads, and the process itself.
"""
