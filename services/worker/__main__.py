"""`python -m services.worker NAME`: runs roles as the supervisor says, whose channel is stdin, until the channel is closed."""

from __future__ import annotations

import socket
import sys

import services.hosting.fast_imports  # noqa: F401
from services.hosting.connections import Connections
from services.hosting.process import run_process, set_clock
from services.kafka.settings import load_settings
from services.worker.worker import Worker


def main() -> None:
    (name,) = sys.argv[1:]
    settings = load_settings()

    def make() -> Worker:
        set_clock(settings, name)
        return Worker(Connections(settings, name), socket.socket(fileno=sys.stdin.fileno()))

    run_process(name, lambda stopping: make().serve(stopping))


if __name__ == "__main__":
    main()
