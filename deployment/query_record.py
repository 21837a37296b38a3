"""The current version of a query: the record of boreal.queries with key NAME; no value after it is deleted.

    {"v": 1, "name": NAME, "spec": {...}, "revision": 3, "paused": false}

`restarts` is there where it is not 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from boreal.model.errors import UserError
from boreal.query.spec import Query, load_query

VERSION = 1


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The current version of a query."""

    name: str
    """Name of the query."""
    spec: dict[str, Any]
    """The specification, as returned by `Query.dump`."""
    revision: int
    """Rises with every change."""
    paused: bool = False
    """Whether the query's processes are stopped."""
    restarts: int = 0
    """How often its replicas were asked to restart."""

    @property
    def query(self) -> Query:
        """The parsed specification. UserError if it is not valid."""
        return load_query(self.spec)

    def to_json(self) -> bytes:
        fields = {
            "v": VERSION,
            "name": self.name,
            "spec": self.spec,
            "revision": self.revision,
            "paused": self.paused,
            **({"restarts": self.restarts} if self.restarts else {}),
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def read_query_record(key: bytes, value: bytes | None) -> tuple[str, QueryRecord | None]:
    """A query's name and its record; None if it is deleted. KeyError, TypeError or ValueError if the record cannot be read."""
    name = key.decode()
    if value is None:
        return name, None
    fields = json.loads(value)
    if fields["v"] != VERSION:
        raise ValueError(f"unknown version of query record: {fields['v']}; this program reads version {VERSION}")
    revision, paused, restarts = int(fields["revision"]), bool(fields["paused"]), int(fields.get("restarts", 0))
    return name, QueryRecord(name, dict(fields["spec"]), revision, paused, restarts)


STRUCTURE = ("streams", "operators", "output", "shards", "fragments")
"""The fields that determine a query's logs: they cannot change."""


def refuse_other_structure(old: Query, new: Query) -> None:
    """UserError if the new version of a running query has another structure."""
    before, after = old.dump(), new.dump()
    for key in STRUCTURE:
        if before.get(key) != after.get(key):
            fix = f"delete it first (boreal query delete {new.name}), or give the new one another name"
            raise UserError(key, after.get(key), f"is not what {new.name} runs with, and cannot change while it runs", fix)
