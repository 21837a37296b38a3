"""Entity tags: which revision of which query a caller has seen, and what it expects of the one that it changes."""

from __future__ import annotations

import re

from api.installation import Precondition, PreconditionError
from boreal.model.errors import UserError
from deployment.query_record import QueryRecord

_TAG = re.compile(r'(?:W/)?"(?:(?P<name>[^"]*)-)?(?P<revision>[0-9]{1,18})"')


def etag_of(record: QueryRecord) -> str:
    """With the name, so that the tag of one query is never taken for that of another."""
    return f'"{record.name}-{record.revision}"'


def precondition(name: str, if_match: str | None, if_none_match: str | None) -> Precondition:
    """What the headers of a change of a query expect. A revision alone, `"3"`, is taken too, since bodies show it. UserError
    for a header that is no list of tags; PreconditionError for the tag of another query."""
    must_exist: bool | None = None
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise UserError("If-None-Match", if_none_match, "is only understood as *", "write If-None-Match: *, to create only")
        must_exist = False
    if if_match is None:
        return Precondition(must_exist=must_exist)
    if must_exist is False:
        raise UserError("If-None-Match", if_none_match, "contradicts If-Match", "send one of the two")
    if if_match.strip() == "*":
        return Precondition(must_exist=True)
    return Precondition(tuple(_revision(name, tag.strip()) for tag in if_match.split(",")), said=if_match)


def _revision(name: str, tag: str) -> int:
    match = _TAG.fullmatch(tag)
    if match is None:
        fix = f'write the ETag of an earlier answer, such as "{name}-3"'
        raise UserError("If-Match", tag, "is not the ETag of a query", fix)
    if match["name"] not in (None, name):
        raise PreconditionError("If-Match", tag, f"is the ETag of {match['name']}, not of {name}", f"read {name} first")
    return int(match["revision"])
