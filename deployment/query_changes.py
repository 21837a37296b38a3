"""The fields of a query that can be set while it runs, and the query that a change of them makes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from boreal.query.spec import Query, load_query

ALPHA = "alpha"
"""A short name of `tuning.alpha_x`."""

SETTABLE = (
    "delay_threshold", "reconcile", "policy", ALPHA, "replicas", "engine", "tuning", "latest", "debezium", "records", "slo",
)  # fmt: skip
"""The fields of a running query that can be set. The structure and the name stay."""


def changed_query(spec: Mapping[str, Any], changes: Mapping[str, object]) -> Query:
    """The query of this specification with some fields of SETTABLE changed; the values are written as in the query file. Of a
    field that is a mapping, the parts that are named change; None stands for the default. UserError for a field that cannot be
    set, and for a query that cannot be."""
    for key in changes:
        if key not in SETTABLE:
            raise UserError(key, changes[key], "cannot be set while the query runs", did_you_mean(key, SETTABLE))
    wanted = dict(spec)
    for key, value in _plain(changes).items():
        before = wanted.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = {part: each for part, each in {**before, **value}.items() if each is not None}
        wanted[key] = value
    try:
        return load_query({key: value for key, value in wanted.items() if value is not None})
    except UserError as error:
        # As the caller has named it.
        raise (replace(error, field=ALPHA) if ALPHA in changes and error.field == "tuning.alpha_x" else error) from None


def _plain(changes: Mapping[str, object]) -> dict[str, object]:
    """The changes without the short name."""
    if ALPHA not in changes:
        return dict(changes)
    tuning = changes.get("tuning", {})
    if not isinstance(tuning, Mapping):
        raise UserError("tuning", tuning, f"contradicts {ALPHA}, which is a part of it", "send one of the two")
    if "alpha_x" in tuning:
        raise UserError(ALPHA, changes[ALPHA], "is the same as tuning.alpha_x", "send one of the two")
    return {**{key: value for key, value in changes.items() if key != ALPHA}, "tuning": {**tuning, "alpha_x": changes[ALPHA]}}
