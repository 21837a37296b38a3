"""The embedded installation behind the API's protocol, in real time, without HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.embedded import EmbeddedInstallation, RingReader
from api.installation import (
    ANY,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    Precondition,
    PreconditionError,
    StreamPlace,
    UnavailableError,
)
from api.metrics import StatusCollector
from boreal.model.errors import UserError
from boreal.query.spec import load_query
from embedded.live.output import OutputRing, RingRecord
from tests.waiting import wait_until

SMALL = """
name: small
streams:
  a: {time: at, schema: {k: string}, boundary: clock, disorder: 60s}
output: a
delay_threshold: 3s
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[EmbeddedInstallation]:
    installation = EmbeddedInstallation(tmp_path, allow_chaos=True, is_demo=True)
    yield installation
    installation.close()


def test_queries_change_under_preconditions(here: EmbeddedInstallation) -> None:
    assert list(here.queries()) == ["departures"] and here.sites == ("local",)
    change = here.change("departures", {"delay_threshold": "5s"}, Precondition(revisions=(1,)))
    assert (change.record.revision, change.record.spec["delay_threshold"]) == (2, "5s")
    with pytest.raises(PreconditionError) as refused:
        here.change("departures", {"delay_threshold": "6s"}, Precondition(revisions=(1,)))
    assert refused.value.current is not None and refused.value.current.revision == 2
    assert here.status("departures")["x_ms"] == 5_000
    assert here.put(load_query(SMALL), Precondition(must_exist=False)).is_new
    with pytest.raises(PreconditionError):
        here.put(load_query(SMALL), Precondition(must_exist=False))
    assert here.put(load_query(SMALL), ANY).record.revision == 1, "the same again changes nothing"
    assert here.pause("small", True, ANY).record.paused and here.status("small")["state"] == "PAUSED"
    with pytest.raises(UnavailableError):
        here.queries(min_revision=("small", 9))
    here.delete("small", ANY)
    with pytest.raises(NotFoundError):
        here.status("small")
    layout = here.layout("departures")
    assert (layout.plan.bucket_us, layout.plan.bucket_run_us, layout.sites) == (600 * 100_000, 100_000, ("local",))
    wait_until(lambda: here.readiness().is_ready)
    assert not here.freshness().is_stale
    assert len(here.instances("departures")) == 2


def test_a_query_that_runs_has_a_sample_of_each_metric(here: EmbeddedInstallation) -> None:
    """But of what no correction or refusal has told yet, and of what queries that share a process do not have alone."""
    here.change("departures", {"slo": "99.9%"}, ANY)

    def lacking() -> set[str]:
        return {family.name for family in StatusCollector(here).collect() if not family.samples}

    untold = {"boreal_reconciliation_seconds", "boreal_input_last_refusal"}
    shared = {"boreal_memory_bytes", "boreal_processor_cores"}
    wait_until(lambda: lacking() <= untold | shared)
    wait_until(lambda: any(entry["held_rows"] for entry in here.instances("departures")))


def test_posted_rows_come_out(here: EmbeddedInstallation) -> None:
    here.put(load_query(SMALL.replace("60s", "0s").replace("clock", "data")), ANY)
    here.append(StreamPlace("small", "a", "small.a"), [b'{"at": "2026-01-01T00:00:00Z", "k": "x"}'])
    here.append(StreamPlace("small", "a", "small.a"), [b'{"at": "2026-01-01T00:00:05Z", "k": "y"}'])
    reader = here.output("small", "stable")
    wait_until(lambda: reader.read(None, 10).events)
    assert '"k":"x"' in reader.read(None, 10).events[0].data
    with pytest.raises(UserError, match="takes no rows"):
        here.append(StreamPlace("departures", "jfk", "departures.jfk"), [b"{}"])


def test_faults_find_their_query(here: EmbeddedInstallation, tmp_path: Path) -> None:
    started = here.fault("cut departures.jfk  for 30s")
    assert (started.fault, started.targets) == ("cut jfk for 30s in departures", ("jfk",))
    assert started.ends_at_ms is not None and started.ends_at_ms > time.time() * 1_000 + 25_000
    assert here.fault("crash main.r1 for 1s").targets == ("main.r1",)
    here.put(load_query(SMALL.replace("  a:", "  jfk:").replace("output: a", "output: jfk")), ANY)
    with pytest.raises(ConflictError, match=r"departures\.jfk, small\.jfk"):
        here.fault("cut jfk for 1s")
    with pytest.raises(NotFoundError, match="sfo"):
        here.fault("cut sfo for 1s")
    with pytest.raises(NotFoundError, match="sfo"):
        here.fault("heal sfo")
    with pytest.raises(UserError, match="would never end"):
        here.fault("crash main.r0")
    assert here.fault("heal departures.jfk").ends_at_ms is None
    calm = EmbeddedInstallation(tmp_path / "calm", allow_chaos=False)
    with pytest.raises(ForbiddenError):
        calm.fault("cut jfk for 1s")
    calm.close()
    with pytest.raises(UnavailableError):
        calm.queries()


def test_a_reader_goes_on_after_a_place_and_is_told_of_a_gap() -> None:
    ring = OutputRing()
    ring.begin(10)
    kinds = ("stable", "boundary", "tentative", "undo", "stable")
    ring.add([RingRecord(11 + n, kind, f"r{n}", f"d{n}" if kind == "stable" else None) for n, kind in enumerate(kinds)])
    everything, stable = RingReader(ring, "all"), RingReader(ring, "stable")
    assert [event.id for event in everything.read(None, 10).events] == [f"local:{n}" for n in range(11, 16)]
    page = everything.read("local:12", 2)
    assert ([event.type for event in page.events], page.next_id, page.gap) == (["tentative", "undo"], "local:14", None)
    assert [event.data for event in stable.read(None, 10).events] == ["d0", "d4"]
    assert stable.read("local:11", 1).next_id == "local:15"
    assert everything.read("local:15", 5).events == () and everything.read("local:15", 5).next_id == "local:15"
    assert everything.read("local:3", 1).gap == {"after": "local:3", "first": "local:11"}
    assert everything.newest(2) == "local:13" and everything.newest(100) == "local:10"
    for wrong in ("local:99", "a:3", "x"):
        with pytest.raises(UserError, match="is not the id"):
            everything.read(wrong, 1)
    calls: list[int] = []
    stop = everything.on_more(lambda: calls.append(1))
    ring.add([RingRecord(16, "boundary", "b", None)])
    stop()
    ring.add([RingRecord(17, "boundary", "b", None)])
    assert len(calls) == 1
