"""Whom a fault means: the query of its stream or replica, where its text need not name that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from api.installation import ConflictError, NotFoundError
from boreal.model.errors import UserError
from boreal.query.planner import plan
from deployment.query_record import QueryRecord
from embedded.faults import Fault, check_faults, parse_fault_at_once

HEAL = "heal"


@dataclass(frozen=True, slots=True)
class ResolvedFault:
    """A fault and its query."""

    query: str
    """The query."""
    fault: Fault
    """The fault, as of this query alone."""
    text: str
    """How it is written, with the query."""
    is_heal: bool = False
    """Whether it ends the faults of the target before their time; `fault` is then one of the same target."""


def resolve(text: str, records: Mapping[str, QueryRecord]) -> ResolvedFault:
    """The query that a fault concerns: the one before its target, as in `cut departures.jfk for 5s`, or the only one that has
    such a target. `heal departures.jfk` ends faults. UserError if it is no fault, NotFoundError if no query has the target,
    ConflictError if several have."""
    words = text.split()
    is_heal = len(words) == 2 and words[0] == HEAL
    target = words[1] if len(words) > 1 else ""
    first, _, rest = target.partition(".")
    found: list[ResolvedFault] = []
    refusals: list[UserError] = []
    for name, record in sorted(records.items()):
        for own in ([rest] if first == name and rest else []) + [target]:
            try:
                fault = parse_fault_at_once(f"cut {own} for 1s" if is_heal else _joined(words, own))
                check_faults([fault], plan(record.query))
            except UserError as error:
                refusals.append(error)
                continue
            found.append(ResolvedFault(name, fault, _joined(words, f"{name}.{own}"), is_heal))
            break
    if len(found) == 1:
        return found[0]
    if found:
        choices = "; ".join(each.text for each in found)
        raise ConflictError("fault", text, "could mean several queries", f"write one of: {choices}")
    if not is_heal:
        parse_fault_at_once(_joined(words, rest if first in records and rest else target))
    fix = refusals[-1].fix if refusals else "create a query first"
    raise NotFoundError("fault", target, "is neither a stream nor a replica of any query", fix)


def _joined(words: list[str], target: str) -> str:
    """A fault with another target."""
    return " ".join([*words[:1], *([target] if target else []), *words[2:]])
