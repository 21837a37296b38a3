"""What the servers are given that needs no server to be checked."""

from __future__ import annotations

import socket
import threading
import uuid
from pathlib import Path

import pytest

from services.stack import servers
from services.stack.servers import HOST, KafkaServer, new_cluster_id


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([uuid.UUID(int=0xF8 << 120), uuid.UUID(int=1)])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert new_cluster_id() == "AAAAAAAAAAAAAAAAAAAAAQ"


def test_a_look_at_a_broker_that_hangs_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.1)
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    with socket.create_server((HOST, 0)) as hanging:
        assert not KafkaServer(tmp_path, hanging.getsockname()[1]).is_ready()
    assert set(threading.enumerate()) <= before
