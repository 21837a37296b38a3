"""The commands of docs/rest.md, in their order: each is answered as the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from api.tokens import Role, TokenStore

ROOT = Path(__file__).resolve().parents[3]
STATUS_ONLY = "curl() { command curl -sS -o /dev/null -w '%{http_code}' --max-time 5 \"$@\"; }\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_each_call_is_answered_as_the_page_says(address: str, tokens: TokenStore) -> None:
    token = tokens.create("guide", [Role.ADMIN, Role.CHAOS])[1]
    calls = re.findall(r"^(curl .*?)  # (\d+)$", (ROOT / "docs" / "rest.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(calls) > 20
    environment = {**os.environ, "API": address, "AUTH": f"Authorization: Bearer {token}"}
    for line, status in calls:
        # A stream of events has no end: its status has come when the time is over.
        line = line.replace("curl -N", "curl --max-time 1")
        run = subprocess.run(
            ["bash", "-c", STATUS_ONLY + line], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        assert run.stdout == status, f"{line}: {run.stdout} {run.stderr}"
