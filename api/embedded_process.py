"""The process of an embedded installation: the API, the dashboard and the engine. `services.stack.embedded` starts it."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket

import uvicorn

from api.app import create_app
from api.dashboard import add_dashboard
from api.embedded import EmbeddedInstallation
from api.jobs import Jobs
from api.server import add_options, server_config
from api.settings import ApiSettings
from api.tokens import TokenStore
from services.hosting.log_lines import set_up_logging
from services.stack.embedded import state_of
from services.stack.state import only_one, write_state

THREAD_SWITCH_S = 0.001
"""How long a thread of the API may keep the engine's waiting."""


class _Server(uvicorn.Server):
    """Calls `on_ready` when it listens."""

    on_ready: Callable[[], None]

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()


def serve(data: Path, settings: ApiSettings, is_demo: bool) -> None:
    """Run until SIGTERM or SIGINT. UserError if another process uses `data`."""
    set_up_logging("api")
    sys.setswitchinterval(THREAD_SWITCH_S)
    with only_one(data):
        installation = EmbeddedInstallation(data, settings.allow_chaos, is_demo)
        # What was imported stays for good, and so do most of the queries that were there: the garbage collector need not look
        # at them. With thousands of queries each of its full looks takes a quarter of a second.
        gc.freeze()
        gc.enable()
        given = settings.token.get_secret_value() if settings.token else None
        tokens = TokenStore(data, given)
        tokens.on_change = lambda: installation.see_tokens(tokens.shown())
        tokens.tokens()
        jobs = Jobs(data / "jobs", settings.jobs_at_once)
        jobs.tell(installation.see_jobs)
        app = create_app(settings, installation, tokens, jobs)
        add_dashboard(app, data)
        server = _Server(server_config(app, settings))
        server.on_ready = lambda: write_state(data, state_of(os.getpid(), is_ready=True))
        with suppress(KeyboardInterrupt):
            server.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="api.embedded_process", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the directory of the installation")
    add_options(parser)
    parser.add_argument("--demo", action="store_true", help="create the demo's query")
    given = vars(parser.parse_args())
    data, is_demo = given.pop("data"), given.pop("demo")
    serve(data, ApiSettings(**{name: value for name, value in given.items() if value is not None}), is_demo)
