"""`python -m services.monitor`: watches all queries until it is told to stop."""

from __future__ import annotations

import threading

from services.monitor.monitor import Monitor
from services.process import run_process
from services.settings import load_settings


def main() -> None:
    def serve(stopping: threading.Event) -> int:
        return Monitor(load_settings()).serve(stopping)

    run_process("monitor", serve)


if __name__ == "__main__":
    main()
