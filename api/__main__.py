"""`python -m api`: serves the API of an installation, as BOREAL_ variables name it. It keeps nothing that a restart loses."""

from __future__ import annotations

import services.hosting.fast_imports  # noqa: F401

# isort: split
import argparse
import threading
from typing import Any

import uvicorn

from api.app import create_app
from api.dashboard import add_dashboard
from api.jobs import Jobs
from api.server import END_WITHIN_S, add_options, server_config
from api.settings import ApiSettings
from api.stack import StackInstallation
from api.tokens import TokenStore
from services.hosting.process import EXIT_STOPPED, StatusPublisher, StopSignal, run_process
from services.kafka.clusters import make_clusters
from services.kafka.settings import load_settings

NAME = "api"


def serve(stopping: StopSignal) -> int:
    arguments = _arguments()
    settings = load_settings()
    options = ApiSettings(**{name: value for name, value in vars(arguments).items() if value is not None})
    installation = StackInstallation(settings, allow_chaos=options.allow_chaos)
    tokens = TokenStore(settings.data, options.token.get_secret_value() if options.token else None)
    jobs = Jobs(settings.data / "jobs", options.jobs_at_once)
    app = create_app(options, installation, tokens, jobs)
    add_dashboard(app, settings.data)
    server = uvicorn.Server(server_config(app, options))
    # Signals are the main thread's; uvicorn leaves them alone in another.
    thread = threading.Thread(target=server.run, name="http", daemon=True)
    thread.start()
    home = make_clusters(settings, NAME)[settings.home]

    def status() -> dict[str, Any]:
        is_ready = server.started and installation.is_known
        return {"ready": is_ready, "tokens": tokens.shown(), "jobs": jobs.lately(), "replays": installation.replays()}

    StatusPublisher(home, NAME, status)
    while thread.is_alive() and not stopping.wait(0.1):
        pass
    server.should_exit = True
    thread.join(timeout=END_WITHIN_S + 1)
    return EXIT_STOPPED if stopping.is_set() else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m api", description="Serves the API of an installation.")
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run_process(NAME, serve)
