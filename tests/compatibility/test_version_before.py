"""An installation of the version before comes up with this one: what it keeps and sends is written as before, and is read.

The samples are in samples.py; the comparison is byte for byte.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from boreal.model.codec import decode
from deployment.query_record import QueryRecord, read_query_record
from formats.client_headers import decode_anchor, decode_place
from formats.control_messages import message_item, message_of
from logs.checkpoints import decode_checkpoint
from reconcile.orders import decode_answer, decode_order
from tests.compatibility import samples as sample
from tests.compatibility.samples import samples

BEFORE = {
    name: bytes.fromhex(text)
    for name, text in json.loads(Path(__file__).with_name("version_0_1_0.json").read_text(encoding="utf-8")).items()
}
"""As version 0.1.0 wrote them. A change of format adds a file beside this one; it never rewrites it."""


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_everything_is_written_as_before(name: str) -> None:
    assert samples()[name] == BEFORE[name]


def test_what_was_written_before_is_read() -> None:
    for name, frame in sample.FRAMES.items():
        assert decode(BEFORE[f"frame {name}"]) == frame
    for name, operator in sample.OPERATORS.items():
        assert operator.decode(BEFORE[f"state {name}"]).encode() == BEFORE[f"state {name}"]
    for name, order in sample.ORDERS.items():
        assert decode_order(BEFORE[f"order {name}"], {"o": sample.SCHEMA}) == (sample.PLACE, order)
    for name, answer in sample.ANSWERS.items():
        assert decode_answer(BEFORE[f"answer {name}"], {"o": sample.SCHEMA}) == (sample.PLACE, answer)
    assert decode_checkpoint(BEFORE["checkpoint"]) == sample.CHECKPOINT
    assert decode_place(BEFORE["header place"]) == sample.CHANGELOG_PLACE
    assert decode_anchor(BEFORE["header anchor"]).time == 40
    for message in sample.MESSAGES:
        assert message_of(message_item(sample.MESSAGES[0].sender, message)) == message


def test_a_query_record_of_the_version_before_is_read() -> None:
    before = b'{"v":1,"name":"q","spec":{"name":"q"},"revision":3,"paused":true}'
    record = QueryRecord("q", {"name": "q"}, 3, True)
    assert read_query_record(b"q", before) == ("q", record)
    assert record.to_json() == before
    assert read_query_record(b"q", None) == ("q", None)
    with pytest.raises(ValueError, match="unknown version of query record: 2; this program reads version 1"):
        read_query_record(b"q", before.replace(b'"v":1', b'"v":2'))
