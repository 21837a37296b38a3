"""Ports of this machine."""

from __future__ import annotations

import contextlib
import random
import socket

from boreal.model.errors import BorealError

HOST = "127.0.0.1"


class ServerFailed(BorealError):
    """A server did not start, or ended during its start. The message holds the end of its log."""


def free_port() -> int:
    """A port that no process listens on, below those that the kernel assigns to outgoing connections: else a client that keeps
    trying to reach a dead server would sooner or later get the server's own port, and block the server's return."""
    for _ in range(1000):
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise ServerFailed("no free port was found between 15000 and 32000")


def is_taken(port: int) -> bool:
    """Whether a program listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
