"""The operator host as a Spark Structured Streaming job, one application for each replica of a query or one that queries share,
and the batch job of a backfill.

Touches Spark, Kafka and Redis.
"""
