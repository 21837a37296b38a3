"""Print the results that a client of load.yaml saw: when each came, and what was taken back.

    python examples/sensors/show.py out/load/changes.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def lines_of(path: Path) -> list[str]:
    """A line for each result and each undo; boundaries and the ends of corrections are left out."""
    changes = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return [_line(change) for change in changes if change["type"] in ("stable", "tentative", "undo")]


def _line(change: dict[str, Any]) -> str:
    at = f"{change['emitted_ms'] / 1_000:5.2f} s  seq {change['seq']:3}  {change['type']:9}"
    if change["type"] == "undo":
        return f"{at}  all after seq {change['after_seq']} is revoked"
    row, missing = change["data"], change["missing_inputs"]
    without = f"  without {', '.join(missing)}" if missing else ""
    return f"{at}  {row['window_start'][11:19]}  {row['readings']:3} readings{without}"


if __name__ == "__main__":
    print("\n".join(lines_of(Path(sys.argv[1]))))
