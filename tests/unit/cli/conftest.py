"""A small query over generated input: a union, filtered and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

QUERY = """
name: small
streams:
  a: {time: time, schema: {k: int, v: double}}
  b: {time: time, schema: {k: int, v: double}}
  unused: {time: time, schema: {k: int}}
operators:
  all: {union: [a, b]}
  most: {filter: all, where: "v > 10"}
  counted: {aggregate: most, window: {tumbling: 500ms}, by: [k], compute: {n: count(*), total: sum(v)}}
output: counted
delay_threshold: 1s
replicas: 2
"""
SOURCES = ("a=generate:50,5,4", "b=generate:50,5,4")
CUT = "cut a at 1s for 2s"


@pytest.fixture
def query(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(QUERY)
    return path


@pytest.fixture
def options(query: Path) -> list[str]:
    """The arguments that name the query, its sources, the pace and a seed."""
    return [str(query), *(part for source in SOURCES for part in ("--source", source)), "--speed", "1x", "--seed", "1"]
