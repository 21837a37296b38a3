"""Headers of the records that clients read. Clients can read values without them; restarts and our own client use them.

id            the stable row's id                                    stable rows of q.out, all of q.stable
incarnation   the writer's incarnation; a record with a lower one    all of q.out and q.stable
              than an earlier record is void: a zombie wrote it (R25)
epoch         as in the value of q.out                               q.stable
anchor        where a restart of the writer begins (R26)             stable boundaries of q.out
place         the changelog's position after this record             stable boundaries of q.out
stable_id     the next id of q.stable when this record was sent      stable boundaries of q.out, at the home site
version       the version of the query that the record comes from    all of q.out and q.stable, once the query has evolved
traceparent   the row's column of this name, if it has a value       rows of q.out and q.stable
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from boreal.model.frames import Anchor
from formats.changelog import ChangelogPlace

ID = "id"
INCARNATION = "incarnation"
EPOCH = "epoch"
ANCHOR = "anchor"
PLACE = "place"
STABLE_ID = "stable_id"
VERSION = "version"


def number(value: int) -> bytes:
    """A number as header value: decimal text."""
    return b"%d" % value


def encode_anchor(anchor: Anchor) -> bytes:
    return json.dumps(asdict(anchor), separators=(",", ":")).encode()


def decode_anchor(text: bytes) -> Anchor:
    fields = json.loads(text)
    return Anchor(fields["time"], fields["needs"], _pairs(fields["next_ids"]), _pairs(fields["inputs"]))


def encode_place(place: ChangelogPlace) -> bytes:
    return json.dumps(asdict(place), separators=(",", ":")).encode()


def decode_place(text: bytes) -> ChangelogPlace:
    return ChangelogPlace(**json.loads(text))


def _pairs(listed: Iterable[list[object]]) -> tuple[tuple[str, int], ...]:
    return tuple((str(key), int(str(value))) for key, value in listed)
