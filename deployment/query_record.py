"""A query as its users last wanted it: the record of boreal.queries, key NAME, no value once it is deleted.

    {"v": 1, "name": NAME, "spec": {...}, "revision": 3, "paused": false}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from boreal.query.spec import Query, load_query

VERSION = 1


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A query as its users last wanted it. spec: as `Query.dump` gives it; revision: grows with every change."""

    name: str
    spec: dict[str, Any]
    revision: int
    paused: bool = False

    @property
    def query(self) -> Query:
        return load_query(self.spec)

    def to_json(self) -> bytes:
        fields = {
            "v": VERSION,
            "name": self.name,
            "spec": self.spec,
            "revision": self.revision,
            "paused": self.paused,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def read_query_record(key: bytes, value: bytes | None) -> tuple[str, QueryRecord | None]:
    """A query's name and its record, None once it is deleted. KeyError, TypeError or ValueError if it cannot be read."""
    name = key.decode()
    if value is None:
        return name, None
    fields = json.loads(value)
    if fields["v"] != VERSION:
        raise ValueError(f"unknown version of query record: {fields['v']}; this program reads version {VERSION}")
    return name, QueryRecord(name, dict(fields["spec"]), int(fields["revision"]), bool(fields["paused"]))
