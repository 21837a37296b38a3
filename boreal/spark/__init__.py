"""The results of a query as a source of Spark: `register(spark)`, then `spark.read.format("boreal")` and `spark.readStream`.

Touches Kafka and Spark. It imports only boreal.client and boreal.model, which is all that an executor needs.
"""

from boreal.spark.source import BorealSource, register

__all__ = ["BorealSource", "register"]
