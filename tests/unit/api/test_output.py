"""Results as server-sent events, on an output in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sse_starlette import ServerSentEvent

from api import create_app
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.routers import output as module
from api.routers.output import _events, _without_row
from api.settings import ApiSettings
from api.tokens import Role, TokenStore
from tests.unit.api.conftest import ADDRESS
from tests.unit.api.memory import MemoryInstallation, MemoryOutput
from tests.unit.api.test_queries import DEPARTURES, problem


@pytest.fixture
def output() -> MemoryOutput:
    made = MemoryOutput()
    for number in range(5):
        made.put("stable", json.dumps({"n": number}))
    return made


async def some(events: AsyncIterator[ServerSentEvent], count: int) -> list[tuple[str | None, str | None, Any]]:
    """The next events, without comments: id, name and data."""
    found: list[tuple[str | None, str | None, Any]] = []
    while len(found) < count:
        event = await asyncio.wait_for(anext(events), 5)
        if event.event is not None:
            found.append((event.id, event.event, json.loads(str(event.data))))
    return found


def rows(*numbers: int) -> list[tuple[str, str, dict[str, int]]]:
    return [(f"a:{n}", "stable", {"n": n}) for n in numbers]


def begin(output: MemoryOutput, place: str | None) -> Any:
    return _events(output, place, output.read(place, module.PAGE), lambda: True)


def test_all_that_is_kept_comes_first_and_then_what_is_new(output: MemoryOutput, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 2)

    async def follow() -> None:
        events = begin(output, None)
        assert await some(events, 5) == rows(0, 1, 2, 3, 4)
        next_one = asyncio.ensure_future(some(events, 1))
        await asyncio.sleep(0.05)
        assert not next_one.done()
        output.put("stable", '{"n": 5}')
        assert await next_one == rows(5)
        await events.aclose()

    asyncio.run(follow())
    assert output.readers == 0


def test_a_caller_goes_on_after_its_last_event(output: MemoryOutput) -> None:
    async def follow() -> None:
        events = begin(output, "a:2")
        assert await some(events, 2) == rows(3, 4)
        await events.aclose()

    asyncio.run(follow())


def test_what_is_no_longer_kept_is_a_gap(output: MemoryOutput) -> None:
    output.first = 3

    async def follow() -> None:
        events = begin(output, "a:0")
        assert await some(events, 3) == [(None, "gap", {"after": "a:0", "first": "a:3"}), *rows(3, 4)]
        await events.aclose()

    asyncio.run(follow())


def test_the_stream_ends_with_its_query(output: MemoryOutput, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    async def follow() -> int:
        events = _events(output, None, output.read(None, 9), lambda: False)
        return len([event async for event in events if event.event is not None])

    assert asyncio.run(follow()) == 5 and output.readers == 0


def test_where_rows_are_not_shown_the_rest_is(tokens: TokenStore, installation: MemoryInstallation, jobs: Jobs) -> None:
    app = create_app(ApiSettings(show_rows=False), installation, tokens, jobs)
    _, token = tokens.create("ours", [Role.ADMIN])
    caller = TestClient(app, base_url=ADDRESS, headers={"Authorization": f"Bearer {token}"})
    assert caller.put(DEPARTURES, json=EXAMPLE_SPEC).status_code == 201
    problem(caller.get(f"{DEPARTURES}/output"), 403, "from")
    installation.outputs["all"].put("tentative", json.dumps({"seq": 7, "key": "secret", "data": {"carrier": "secret"}}))
    read = installation.outputs["all"].read(None, 9)

    async def follow() -> list[Any]:
        return await some(_events(installation.outputs["all"], None, read, lambda: True, _without_row), 1)

    assert asyncio.run(follow()) == [("a:0", "tentative", {"seq": 7, "key": None, "data": None})]
    assert caller.get(f"{DEPARTURES}/status").json()["counts"] == {"stable": 0, "tentative": 0, "undone": 0}


def test_an_id_of_another_output_and_an_unknown_view_are_refused(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation
) -> None:
    problem(admin.get(f"{DEPARTURES}/output", headers={"Last-Event-ID": "elsewhere"}), 422, "Last-Event-ID")
    problem(admin.get(f"{DEPARTURES}/output", params={"from": "some"}), 422, "from")
    problem(admin.get("/api/v1/queries/none/output"), 404, "NAME")
