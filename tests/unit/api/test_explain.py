"""Where X goes."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.explain import PARTS, explanation
from api.models import EXAMPLE_SPEC
from boreal.query.planner import plan
from boreal.query.spec import load_query
from tests.unit.api.test_queries import DEPARTURES

SECOND_US = 1_000_000
PLAN = plan(load_query({**EXAMPLE_SPEC, "tuning": {"bucket": "100ms", "boundary_interval": "50ms"}}))
STATUS = {"state": "STABLE", "tentative": {"outstanding": 0, "since": None, "cause": None}}


def port(name: str, boundary_us: int, silent_for_ms: float = 20.0) -> dict[str, Any]:
    return {"name": name, "boundary": boundary_us, "failed": False, "silent_for_ms": silent_for_ms, "hop_ms": 4.0}


def instance(*inputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    who = {"fragment": "main", "replica": "r0", "shard": 0, "state": "STABLE"}
    lengths = {"alpha_x_ms": 2_500.0, "engine_ms": 10.0, "path_after_ms": 40.0, "position": 10 * SECOND_US}
    return {**who, **lengths, "inputs": inputs, "missing": [], **fields}


def test_the_parts_sum_up_to_x() -> None:
    found = explanation(PLAN, STATUS, [instance(), instance(replica="r1", alpha_x_ms=2_600.0)])
    assert [part["name"] for part in found["parts"]] == list(PARTS)
    assert sum(part["ms"] for part in found["parts"] if part["within"] is None) == pytest.approx(found["x_ms"])
    lengths = {part["name"]: part["ms"] for part in found["parts"]}
    assert (lengths["hold"], lengths["engine"], lengths["egress"], lengths["reserve"]) == (2_500, 10, 40, 450)
    assert {part["name"] for part in found["parts"] if part["within"] == "hold"} == {"source", "transport"}


def test_the_way_to_an_instance_is_the_longest_of_its_inputs_and_the_way_after_it_what_its_readers_say() -> None:
    slow = {**port("lga", 0), "hop_ms": 70.0}
    entry = instance(port("jfk", 0), slow, path_after_ms=900.0)
    lengths = {part["name"]: part["ms"] for part in explanation(PLAN, STATUS, [entry])["parts"]}
    assert lengths["transport"] == 70 and (lengths["egress"], lengths["reserve"]) == (490, 0), "no more than X has left"
    unheard = {part["name"]: part["ms"] for part in explanation(PLAN, STATUS, [])["parts"]}
    assert unheard["transport"] is None and unheard["egress"] is None


def test_a_bucket_waits_for_the_input_that_is_silent_while_another_goes_on() -> None:
    entry = instance(port("jfk", 10 * SECOND_US, 1_200.0), port("lga", 12 * SECOND_US), missing=["jfk"], state="UP_FAILURE")
    [wait] = explanation(PLAN, STATUS, [entry])["waits"]
    assert [each["name"] for each in wait["for"]] == ["jfk"]
    assert (wait["waited_ms"], wait["tentative_in_ms"], wait["is_tentative"]) == (1_200, 1_300, False)
    assert wait["bucket"] == {"from": "1970-01-01T00:00:10.000000Z", "to": "1970-01-01T00:00:10.100000Z"}
    tentative = {**STATUS, "tentative": {"outstanding": 3, "since": None, "cause": "main.r0.0-1"}}
    [wait] = explanation(PLAN, tentative, [entry])["waits"]
    assert wait["is_tentative"] and wait["tentative_in_ms"] == 0


def test_what_has_come_everywhere_or_nowhere_waits_for_nothing() -> None:
    everywhere = instance(port("jfk", 12 * SECOND_US), port("lga", 12 * SECOND_US))
    nowhere = instance(port("jfk", 10 * SECOND_US), port("lga", 10 * SECOND_US))
    unknown = instance(position=None)
    assert explanation(PLAN, STATUS, [everywhere, nowhere, unknown])["waits"] == []


def test_a_query_whose_instances_are_silent_has_a_bar_of_unknown_parts(admin: TestClient, query: dict[str, Any]) -> None:
    found = admin.get(f"{DEPARTURES}/explain-delay").json()
    assert found["x_ms"] == 3_000 and found["waits"] == [] and [part["name"] for part in found["parts"]] == list(PARTS)
    assert [each["name"] for each in admin.get(f"{DEPARTURES}/inputs").json()] == ["jfk"]
    assert [each["replica"] for each in admin.get(f"{DEPARTURES}/replicas").json()] == ["r0", "r1"]
