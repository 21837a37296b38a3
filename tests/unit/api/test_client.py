"""The typed client, against the API on a real socket, over an installation in memory."""

from __future__ import annotations

import asyncio
import io
import json

import pyarrow as pa
import pytest

from api.comparisons import EXAMPLE
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.tokens import Role, TokenStore
from boreal.api_client import ApiClient, ApiError, AsyncApiClient, Event
from deployment.events import RecordedEvent
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


def test_other_jobs_are_listed_cancelled_and_deleted(address: str, token: str, jobs: Jobs) -> None:
    with ApiClient(address, token) as api:
        api.put(EXAMPLE_SPEC)
        asked = {key: EXAMPLE[key] for key in ("query", "sources", "faults")}
        assert api.verify({"id": "exact", **asked})["state"] in ("queued", "running")
        assert [each["id"] for each in api.verifications()["verifications"]] == ["exact"]
        assert api.cancel_verification("exact")["state"] == "cancelled"
        api.delete_verification("exact")
        assert api.verifications(limit=3) == {"verifications": [], "next": None}
        jobs.post("backfill", "again", "departures", "ours", {})  # as of a query that has run
        assert [each["id"] for each in api.backfills()["backfills"]] == ["again"]
        assert api.cancel_backfill("again")["state"] == "cancelled"
        api.delete_backfill("again")
        assert api.backfills() == {"backfills": [], "next": None}


def test_reads_of_a_query_its_parts_and_the_settings(address: str, token: str) -> None:
    with ApiClient(address, token) as api:
        api.put(EXAMPLE_SPEC)
        assert [each["name"] for each in api.overview(limit=5)["queries"]] == ["departures"]
        assert [each["name"] for each in api.inputs("departures", min_revision=1)] == ["jfk"]
        assert [each["replica"] for each in api.replicas("departures")] == ["r0", "r1"]
        assert api.config()["api"]["port"] == 8080
        assert [each["roles"] for each in api.workers()] == [["egress.q.a", "source.q.left"]]
        for read in (api.query, api.plan, api.explain_delay, api.inputs, api.replicas):
            with pytest.raises(ApiError) as refused:
                read("departures", min_revision=9)
            assert (refused.value.status, refused.value.field) == (503, "min_revision")


def test_each_change_may_say_what_it_expects(address: str, token: str, installation: MemoryInstallation) -> None:
    with ApiClient(address, token) as api:
        api.put(EXAMPLE_SPEC)
        for change in (api.pause, api.resume, api.restart, api.roll_back, api.settle):
            with pytest.raises(ApiError) as refused:
                change("departures", if_match=7)
            # What is no change at all is refused for that before.
            assert refused.value.status == 412 or change in (api.roll_back, api.settle)
        assert api.pause("departures", if_match=1)["paused"] and not api.resume("departures", if_match=2)["paused"]
        assert api.restart("departures", only_failed=True, if_match=3)["revision"] == 3


def test_rows_are_given_as_lines_and_as_arrow(address: str, token: str, installation: MemoryInstallation) -> None:
    with ApiClient(address, token) as api:
        api.put(EXAMPLE_SPEC)
        lines = "".join(json.dumps({**ROW, "carrier": carrier}) + "\n" for carrier in ("AA", "UA")).encode()
        assert api.append_lines("jfk", lines) == {"accepted": 2, "refused": 0, "reasons": []}
        table, stream = pa.Table.from_pylist([ROW, ROW, {**ROW, "carrier": "B6"}]), io.BytesIO()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        assert api.append_arrow("departures.jfk", stream.getvalue())["accepted"] == 3
        assert [json.loads(row)["carrier"] for _, row in installation.appended] == ["AA", "UA", "AA", "AA", "B6"]
        with pytest.raises(ApiError) as refused:
            api.append_arrow("jfk", b"none")
        assert (refused.value.status, refused.value.field) == (422, "body")


def test_events_come_as_they_happen_and_a_caller_goes_on_after_the_last(
    address: str, token: str, installation: MemoryInstallation
) -> None:
    for number, kind in enumerate(("created", "paused", "resumed"), 1):
        installation.events.take(number, RecordedEvent(float(number), kind, "departures"))
    installation.events.take(4, RecordedEvent(4.0, "paused", "other"))
    with ApiClient(address, token) as api:
        events = api.follow_events(query="departures", after=1)
        assert [(each.id, each.type) for each in (next(events), next(events))] == [("2", "paused"), ("3", "resumed")]
        installation.events.take(5, RecordedEvent(5.0, "deleted", "departures"))
        assert next(events).data["kind"] == "deleted"
        assert next(api.follow_events(kinds=["paused"], after=2)).data["query"] == "other"


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
            installation.events.take(1, RecordedEvent(1.0, "created", "departures"))
            installation.events.take(2, RecordedEvent(2.0, "paused", "departures"))
            async for event in client.follow_events(query="departures", after=1):
                assert (event.id, event.type) == ("2", "paused")
                break

    asyncio.run(use())
