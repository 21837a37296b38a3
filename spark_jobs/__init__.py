"""The operator host as a Spark Structured Streaming job: one application for each replica of a query (engine: spark)."""
