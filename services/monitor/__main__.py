"""`python -m services.monitor`: watches all queries until it is stopped."""

from __future__ import annotations

import services.hosting.fast_imports  # noqa: F401
from services.hosting.process import StopSignal, run_process, set_clock
from services.kafka.settings import load_settings
from services.monitor.monitor import NAME, MonitorProcess


def main() -> None:
    def serve(stopping: StopSignal) -> int:
        settings = load_settings()
        set_clock(settings, NAME)
        return MonitorProcess(settings).serve(stopping)

    run_process(NAME, serve)


if __name__ == "__main__":
    main()
