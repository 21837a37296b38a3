"""Benchmarks: `boreal bench`.

Touches clocks, processes, Kafka, Redis and Spark on this machine.
"""
