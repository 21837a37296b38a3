"""`boreal worker`: a process that joins a site and runs roles of its queries."""

from __future__ import annotations

import os
import re
import socket
from typing import Annotated

import typer

from boreal.model.errors import UserError
from boreal_cli.stack import Data

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def add_to(app: typer.Typer) -> None:
    """Register the command of this module."""
    app.command(epilog="Example: boreal worker --site a")(worker)


def worker(
    site: Annotated[str, typer.Option(metavar="S", help="The site to join.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Its name, unique at the site. Default: the host's name and the process's number.",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
) -> None:
    """Join a site, and run sources, replicas and egresses of its queries, until it is stopped.

    It may run on any machine that reaches the Kafka of all sites, and Redis; it finds them as all commands do, such as by
    BOREAL_SITES__A__BOOTSTRAP=HOST:PORT. The site's supervisor decides what it runs, and must be started with --workers joined.
    Exit status 1: the supervisor refuses it, such as for its version, or because another worker has its name.
    """
    import services.hosting.fast_imports  # noqa: F401
    from deployment.placement_record import worker_process
    from services.hosting.process import run_process, set_clock
    from services.stack.launcher import reach
    from services.worker.joined import JoinedWorker, check_site

    settings = reach(data)
    check_site(settings, site)
    chosen = name or f"{socket.gethostname().partition('.')[0]}-{os.getpid()}"
    if not _NAME.fullmatch(chosen):
        raise UserError("--name", chosen, "has other characters than letters, digits, - and _", "give --name such as w1")
    own = worker_process(site, chosen)

    def make() -> JoinedWorker:
        set_clock(settings, own)
        return JoinedWorker(settings, site, chosen)

    run_process(own, lambda stopping: make().serve(stopping))
