"""The typed client, against the API on a real socket, over an installation in memory."""

from __future__ import annotations

import asyncio

import pytest

from api.comparisons import EXAMPLE
from api.models import EXAMPLE_SPEC
from api.tokens import Role, TokenStore
from boreal.api_client import ApiClient, ApiError, AsyncApiClient, Event
from tests.unit.api.memory import MemoryInstallation

ROW = {"departed_at": "2013-01-01T05:15:00Z", "carrier": "AA", "dep_delay": 22.0}


@pytest.fixture
def token(tokens: TokenStore) -> str:
    return tokens.create("test", [Role.ADMIN, Role.CHAOS])[1]


def test_queries_are_made_changed_and_deleted(address: str, token: str) -> None:
    with ApiClient(address, token) as api:
        assert api.put(EXAMPLE_SPEC)["revision"] == 1
        assert api.change("departures", delay_threshold="1s", if_match=1)["x_ms"] == 1_000
        with pytest.raises(ApiError) as refused:
            api.change("departures", delay_threshold="9s", if_match=1)
        assert (refused.value.status, refused.value.revision, refused.value.field) == (412, 2, "If-Match")
        assert [each["status"]["x_ms"] for each in api.queries(status=True)] == [1_000]
        assert api.status("departures", min_revision=2)["name"] == api.query("departures")["name"] == "departures"
        assert api.validate(EXAMPLE_SPEC)["valid"] and api.plan("departures")["output"] == "by_carrier"
        assert api.pause("departures")["paused"] and not api.resume("departures")["paused"]
        assert api.restart("departures")["name"] == "departures" and api.explain_delay("departures")["waits"] == []
        assert api.append("jfk", [ROW])["accepted"] == 1 and api.failures("departures") == {"failures": [], "next": None}
        assert api.reconciliations("departures", limit=3) == {"reconciliations": [], "next": None}
        assert api.chaos("cut jfk for 5s")["fault"] == "cut jfk for 5s"
        api.delete("departures")
        with pytest.raises(ApiError, match="no such query"):
            api.query("departures")
    with pytest.raises(ApiError) as refused:
        ApiClient(address, "other").queries()
    assert refused.value.status == 401 and refused.value.fix


def test_comparisons_are_begun_read_and_ended(address: str, token: str) -> None:
    with ApiClient(address, token) as api:
        api.put(EXAMPLE_SPEC)
        begun = api.compare(EXAMPLE)
        assert begun["id"] == "which-mode" and api.compare(EXAMPLE) == api.comparison("which-mode") == begun
        assert [each["id"] for each in api.comparisons()["comparisons"]] == ["which-mode"]
        assert api.cancel_comparison("which-mode")["state"] == "cancelled"
        api.delete_comparison("which-mode")
        assert api.comparisons() == {"comparisons": [], "next": None}


def test_results_come_as_they_are_made_and_callers_may_leave_open_streams(
    address: str, token: str, installation: MemoryInstallation
) -> None:
    """As the fixture ends, the server ends too, although this caller still listens."""
    api = ApiClient(address, token)
    api.put(EXAMPLE_SPEC)
    output = installation.outputs["all"]
    output.put("tentative", '{"seq": 1}')
    results = api.output("departures", view="all")
    assert next(results) == Event("a:0", "tentative", {"seq": 1})
    output.put("undo", '{"seq": 2}')
    assert next(results) == Event("a:1", "undo", {"seq": 2})
    assert next(api.output("departures", view="all", after="a:0")).id == "a:1"
    assert next(api.output("departures", view="all", last=1)).id == "a:1"


def test_the_same_for_asyncio(address: str, token: str, installation: MemoryInstallation) -> None:
    async def use() -> None:
        async with AsyncApiClient(address, token) as client:
            made = await client.run(client.api.put, EXAMPLE_SPEC)
            assert made["revision"] == 1
            installation.outputs["stable"].put("stable", '{"n": 1}')
            async for event in client.output("departures"):
                assert event.data == {"n": 1}
                break

    asyncio.run(use())
