"""Whether a status has the fields that docs/settings.md describes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from deployment.status_fields import Fields

SOMETIMES = ("sources", "answers", "jobs", "workers", "clock")
"""The fields that `boreal status --json` has only where there is anything to say."""


def assert_described(status: Mapping[str, Any], fields: Fields, *, may_lack: Collection[str] = (), path: str = "") -> None:
    """Each field of the status is described, and each that is described is there, but for those of any name."""
    any_name = [name for name in fields if name.isupper()]
    for name, value in status.items():
        entry = fields.get(name) or (fields[any_name[0]] if any_name else None)
        assert entry is not None, f"{path}{name} is not in deployment/status_fields.py"
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, Mapping):
                assert isinstance(entry, tuple), f"the fields of {path}{name} are not in deployment/status_fields.py"
                assert_described(part, entry[1], path=f"{path}{name}.")
    absent = fields.keys() - status.keys() - set(any_name) - set(may_lack)
    assert not absent, f"{path}: there is no {', '.join(sorted(absent))}"
