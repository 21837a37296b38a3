"""`python -m spark_jobs QUERY REPLICA`: runs the operators of one replica of a query in Spark until it is stopped."""

from __future__ import annotations

from spark_jobs.job import main

if __name__ == "__main__":
    main()
