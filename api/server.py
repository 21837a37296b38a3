"""What both processes of the API share: how it is served, and the options of their command lines."""

from __future__ import annotations

import argparse

import uvicorn
from fastapi import FastAPI

from api.settings import ApiSettings

END_WITHIN_S = 1
"""How long open streams may delay the end, in seconds."""


def server_config(app: FastAPI, settings: ApiSettings) -> uvicorn.Config:
    """How uvicorn serves the API."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        log_config=None,  # as the process logs
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        server_header=False,
        timeout_graceful_shutdown=END_WITHIN_S,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that go before the settings of the environment; those that are not given are None."""
    parser.add_argument("--port", type=int, help="the port to listen on, over BOREAL_API__PORT")
    parser.add_argument("--allow-chaos", action="store_true", default=None, help="as BOREAL_API__ALLOW_CHAOS")
