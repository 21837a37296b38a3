"""Hosting: what every process of a query shares, and the threads that run an instance over logs.

Touches Kafka through services.storage, threads, and the process itself.
"""
