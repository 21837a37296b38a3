"""boreal: streaming answers within X, whatever breaks; and every answer right in the end."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`boreal.CorrectedStream`, looked up when it is first used: it needs a Kafka client, which the model does not."""
    if name == "CorrectedStream":
        return import_module("boreal.client").CorrectedStream
    raise AttributeError(f"module 'boreal' has no attribute {name!r}")
