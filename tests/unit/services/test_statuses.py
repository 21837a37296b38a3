"""What is known of the processes of an installation, from what they say."""

from __future__ import annotations

from typing import cast

import pytest

from services.kafka import statuses as statuses_module
from services.kafka.clusters import Cluster
from services.kafka.statuses import FORGOTTEN_AFTER_MS, Statuses


class Reader:
    """Says nothing by itself."""

    is_current = None

    def __init__(self, cluster: object, on_status: object) -> None:
        pass


def test_what_has_been_silent_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries come and go for months, and their roles with them."""
    monkeypatch.setattr(statuses_module, "StatusReader", Reader)
    statuses = Statuses(cast(Cluster, None))

    def names(process: str, at_ms: float) -> list[str]:
        statuses._take({"process": process, "pid": 1, "at_ms": at_ms, "ready": True})
        return sorted(statuses.newest())

    assert names("a", 0) == ["a"] and names("b", 10) == ["a", "b"] and names("a", 20) == ["a", "b"]
    assert names("c", FORGOTTEN_AFTER_MS + 10) == ["a", "b", "c"]
    assert names("c", FORGOTTEN_AFTER_MS + 11) == ["a", "c"]
