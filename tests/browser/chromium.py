"""The browser of the machine: Debian's Chromium, which these tests start but never download."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser: install Chromium (apt-get install chromium)")

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
"""Chromium as it works in a container without a network: it asks nobody for anything."""

PICTURES = Path(__file__).resolve().parents[2] / "out" / "browser"
"""Where screenshots are kept, for whoever builds."""


def picture(name: str) -> Path:
    """The path of a screenshot that is kept."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    return PICTURES / f"{name}.png"
