"""What the stack's commands say of a change."""

from __future__ import annotations

import json

import pytest

from boreal.cli import main, stack
from boreal.spec import load_query
from services.queries import QueryRecord
from services.stack.operations import Liveness
from tests.harness import query_of


class Paused:
    """The operations of an installation whose only query is paused."""

    def set(self, name: str, changes: dict[str, str]) -> QueryRecord:
        return QueryRecord(name, load_query(query_of()).changed(**changes).dump(), 2, paused=True)

    def liveness(self, record: QueryRecord) -> Liveness:
        return Liveness(False, (), {}, (), None)

    def close(self) -> None:
        pass


def test_a_paused_query_that_is_changed_is_said_to_be_paused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "_operations", lambda data: Paused())
    monkeypatch.setattr(stack, "LIVE_WITHIN_S", 0.0)
    assert main(["query", "set", "q", "delay_threshold=1s"]) == 0
    assert capsys.readouterr() == ("q is paused, revision 2\n", "")
    assert main(["query", "set", "q", "delay_threshold=1s", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["paused"], said["live"], said["problem"]) == (True, False, None)
