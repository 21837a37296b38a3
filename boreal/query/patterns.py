"""Regular expressions in the syntax of RE2, which takes linear time whatever the pattern."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|$)"  # text that is quoted
    r"|\\."  # an escaped character
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]])*\]"  # a class of characters; a ] that comes first is one of them
    r"|\(\?P?<(?P<name>\w+)>"  # a group with a name
    r"|(?P<plain>\((?!\?))"  # a group without
    r"|.",
    re.DOTALL,
)

WHOLE = "whole_match"
"""The name of the group that is the match itself."""


def pattern_problem(pattern: str, replacement: str = "") -> str:
    """What is wrong with a pattern, or with what is to replace its matches; "" if nothing is."""
    try:
        pc.replace_substring_regex(pa.array([""]), pattern, replacement)
    except pa.ArrowInvalid as error:
        return str(error).removeprefix("Invalid regular expression: ").removeprefix("Invalid replacement string: ")
    return ""


def named_groups(pattern: str) -> tuple[str, list[str]]:
    """(The pattern as one group, with a name for every group in it; the names by the groups' numbers). Arrow extracts groups by
    names alone."""
    parts: list[str] = []
    names = [WHOLE]
    for token in _TOKEN.finditer(pattern):
        if token["plain"]:
            names.append(f"group_{len(names)}_of_pattern")
            parts.append(f"(?P<{names[-1]}>")
            continue
        if token["name"]:
            names.append(token["name"])
        parts.append(token[0])
    return f"(?P<{WHOLE}>{''.join(parts)})", names
