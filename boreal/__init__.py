"""boreal: a stream processor that answers within X while inputs fail, and corrects every answer after the failure. Here is what
users import.

Touches Kafka in `client` and `spark`. Imports no other room, but that `python -m boreal` opens `boreal_cli`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import `CorrectedStream` on first use: it needs a Kafka client, but the model does not."""
    if name == "CorrectedStream":
        return import_module("boreal.client").CorrectedStream
    raise AttributeError(f"module 'boreal' has no attribute {name!r}")
