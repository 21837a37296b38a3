"""How much random tests draw. Where BOREAL_THOROUGH is set, as by `make thorough`, five times as much as in `make test`."""

from __future__ import annotations

import os

IS_THOROUGH = bool(os.environ.get("BOREAL_THOROUGH"))


def some(count: int) -> int:
    """`count` cases of a thorough run, or a fifth of them."""
    return count if IS_THOROUGH else -(-count // 5)
