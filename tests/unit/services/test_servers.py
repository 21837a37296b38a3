"""What the servers are given that needs no server to be checked."""

from __future__ import annotations

import uuid

import pytest

from services.stack.servers import new_cluster_id


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([uuid.UUID(int=0xF8 << 120), uuid.UUID(int=1)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert new_cluster_id() == "AAAAAAAAAAAAAAAAAAAAAQ"
