"""Reads the results of a query without boreal: final rows, provisional rows, and what is taken back. Needs kafka-python.

    python reader.py 127.0.0.1:9092 load          for good
    python reader.py 127.0.0.1:9092 load now      up to the present end of the topic
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from kafka import KafkaConsumer, TopicPartition

bootstrap, query, *until_now = sys.argv[1:]
out = TopicPartition(f"{query}.out", 0)
consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
consumer.assign([out])
consumer.seek_to_beginning(out)
end = consumer.end_offsets([out])[out] if until_now else math.inf

incarnation, next_id = 0, 0
tentative: list[tuple[int, dict[str, Any]]] = []  # (seq, row) of the provisional rows, in order
while consumer.position(out) < end:
    for record in consumer.poll(timeout_ms=200).get(out, []):
        change, headers = json.loads(record.value), dict(record.headers)
        if int(headers["incarnation"]) < incarnation:
            continue  # written by a process that another one has replaced
        incarnation = int(headers["incarnation"])
        if change["type"] == "tentative":
            tentative.append((change["seq"], change["data"]))
            print("tentative", json.dumps(change["data"]))
        elif change["type"] == "undo":
            kept = [row for row in tentative if row[0] <= change["after_seq"]]
            print("undo", len(tentative) - len(kept))
            tentative = kept
        elif change["type"] == "stable" and int(headers["id"]) >= next_id:
            next_id = int(headers["id"]) + 1
            print("stable", json.dumps(change["data"]), flush=True)
