"""The local stack: real Kafka and Redis servers on this machine, fetched and started for whoever has none at hand."""
