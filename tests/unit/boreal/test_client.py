"""The reader's protocol: one site's stream as it is, zombies, switching between sites, gaps; and the current view."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import KafkaConfigurationError
from pydantic import BaseModel, ValidationError

from boreal import CorrectedStream
from boreal.client import Boundary, Change, Missing, MissingRows, RecDone, Stable, Tentative, Undo, View
from boreal.client.corrected_stream import _make_row_factory
from boreal.client.corrector import Corrector, Delivery, LogPosition, OutputRecord
from boreal.client.result_frame import check_frame, frame_of_changes, frame_of_rows
from boreal.client.site_readers import SiteReaders
from boreal.model.errors import UserError
from tests.foreign import NAMES, make_foreign_packages, run_python
from tests.waiting import wait


def moment(second: int) -> str:
    return (datetime(2013, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat()


@dataclass
class Site:
    """Writes the records of one site's q.out. A row's time is its number, and so is its t_max."""

    name: str = "a"
    incarnation: int = 1
    records: list[OutputRecord] = field(default_factory=list)
    taken: int = 0

    def write(self, kind: str, id_: int = -1, **fields: object) -> Site:
        common: dict[str, object] = {"type": kind, "missing_inputs": [], "cause": None, "ingest_ms": 1.0, "emitted_ms": 2.0}
        self.records.append(OutputRecord(len(self.records), id_, self.incarnation, {**common, **fields}))
        return self

    def stable(self, *ids: int) -> Site:
        for id_ in ids:
            self.write("stable", id_, data={"n": id_}, key=id_ % 3, event_time=moment(id_), t_max=moment(id_))
        return self

    def tentative(self, *numbers: int) -> Site:
        for n in numbers:
            self.write(
                "tentative",
                data={"n": n},
                key=n % 3,
                event_time=moment(n),
                t_max=moment(n),
                missing_inputs=["jfk"],
                cause=f"{self.name}#1",
            )
        return self

    def undo(self) -> Site:
        return self.write("undo", cause="healed")

    def rec_done(self) -> Site:
        return self.write("rec_done")

    def boundary(self, second: int, tentative: bool = False) -> Site:
        return self.write("boundary", through=moment(second), tentative=tentative)

    def news(self) -> tuple[str, list[OutputRecord]]:
        """What was written since the last call."""
        new, self.taken = self.records[self.taken :], len(self.records)
        return self.name, new


def reader(*sites: str, next_id: int | None = None, stable_only: bool = False) -> Corrector:
    return Corrector(dict.fromkeys(sites, LogPosition(0, 0)), lambda data: data["n"], 0.0, next_id, stable_only)


def short(given: Sequence[Delivery]) -> list[object]:
    """s3, t4, undo(t4), b5, done, missing(1-2)."""
    return [_short(one.change) for one in given]


def _short(change: Change) -> str:
    match change:
        case Stable(data=n):
            return f"s{n}"
        case Tentative(data=n):
            return f"t{n}"
        case Undo(revoked):
            return f"undo({' '.join(_short(row) for row in revoked)})"
        case Boundary(through, tentative):
            return f"b{'?' if tentative else ''}{through.second}"
        case RecDone():
            return "done"
        case Missing(first_id, last_id):
            return f"missing({first_id}-{last_id})"
    raise AssertionError(change)


def test_one_site_is_given_as_it_is() -> None:
    a = Site().stable(0, 1).boundary(2).tentative(2, 3).boundary(4, True).undo().stable(2, 3).rec_done().boundary(4)
    given = reader("a").take([a.news()], 0)
    assert short(given) == ["s0", "s1", "b2", "t2", "t3", "b?4", "undo(t2 t3)", "s2", "s3", "done", "b4"]
    row, tentative = given[0].change, given[3].change
    assert row == Stable(0, 0, 0, datetime(2013, 1, 1, tzinfo=UTC), "a", 1.0, 2.0)
    assert isinstance(tentative, Tentative) and (tentative.missing_inputs, tentative.cause) == (("jfk",), "a#1")


def test_stable_rows_alone() -> None:
    a = Site().stable(0).tentative(1).boundary(3, True).undo().stable(1).rec_done().boundary(2)
    assert short(reader("a", stable_only=True).take([a.news()], 0)) == ["s0", "s1"]


def test_a_place_is_after_the_last_stable_row() -> None:
    a = Site().stable(0, 1).boundary(2).tentative(2)
    given = reader("a").take([a.news()], 0)
    assert [(one.next_id, one.position) for one in given] == [(1, LogPosition(1, 1)), *[(2, LogPosition(2, 2))] * 3]
    again = Corrector({"a": LogPosition(2, 2)}, lambda data: data["n"], 0.0, next_id=2)
    assert short(again.take([("a", a.undo().stable(2).records[2:])], 0)) == ["b2", "t2", "undo(t2)", "s2"]


def test_the_place_at_an_undo_is_before_the_row_that_it_makes_way_for() -> None:
    """A reader that stops between the two has it still before it."""
    a, b = Site("a").stable(0).tentative(1), Site("b").stable(0, 1, 2)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    undo, row, _ = corrector.take([b.boundary(2).news()], 1.1)
    assert short([undo, row]) == ["undo(t1)", "s1"]
    assert (undo.next_id, undo.position) == (1, LogPosition(1, 1)) and (row.next_id, row.position) == (2, LogPosition(2, 2))


def test_what_lies_before_a_place_is_history() -> None:
    a = Site().stable(0, 1).boundary(2).tentative(2, 3).undo().stable(2).tentative(3)
    assert short(reader("a", next_id=3).take([a.news()], 0)) == ["t3"]


def test_a_repeat_is_dropped_and_a_zombie_is_not_heard() -> None:
    a = Site().stable(0, 1)
    a.incarnation = 2
    a.undo().stable(1, 2)
    a.incarnation = 1
    a.tentative(9).undo().stable(2)
    a.incarnation = 2
    a.stable(3)
    assert short(reader("a").take([a.news()], 0)) == ["s0", "s1", "s2", "s3"]


def test_a_restart_with_nothing_tentative_tells_the_reader_nothing() -> None:
    assert short(reader("a").take([Site().stable(0).undo().stable(1).rec_done().news()], 0)) == ["s0", "s1"]


def test_a_stable_boundary_never_goes_back() -> None:
    a, b = Site("a").boundary(5), Site("b").boundary(3).boundary(4).boundary(6)
    corrector = reader("a", "b")
    assert short(corrector.take([a.news()], 0)) == ["b5"]
    assert short(corrector.take([b.news()], 5)) == []
    assert short(corrector.take([b.boundary(4).boundary(7).news()], 5.1)) == ["b7"]


# Several sites.


def test_the_live_sites_stream_is_given_and_the_others_wait() -> None:
    a, b = Site("a").stable(0).tentative(1), Site("b").stable(0, 1, 2).tentative(3)
    corrector = reader("a", "b")
    assert short(corrector.take([a.news(), b.news()], 0)) == ["s0", "t1"]
    assert short(corrector.take([a.undo().stable(1, 2, 3).news()], 0.1)) == ["undo(t1)", "s1", "s2", "s3"]
    assert not corrector.sites["b"].waiting


def test_a_silent_site_is_left_for_one_that_is_ahead() -> None:
    a, b = Site("a").stable(0).tentative(1), Site("b").stable(0, 1, 2)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    assert short(corrector.take([b.boundary(2).news()], 0.9)) == []
    assert short(corrector.take([b.boundary(3).news()], 1.1)) == ["undo(t1)", "s1", "s2"]
    assert corrector.live == "b"
    assert short(corrector.take([a.undo().stable(1, 2, 3).news(), b.stable(3).news()], 1.2)) == ["s3"]


def test_nobody_is_left_for_a_site_that_is_silent_too() -> None:
    a, b = Site("a").stable(0), Site("b").stable(0)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    assert short(corrector.take([], 9)) == []
    assert corrector.live == "a"


def test_what_a_site_says_twice_holds_back_nothing_behind_it() -> None:
    a, b = Site("a").stable(0), Site("b").stable(0, 1, 2)
    b.incarnation = 2
    b.undo().stable(1, 2, 3, 4)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    assert short(corrector.take([b.boundary(5).news()], 1.1)) == ["s1", "s2", "s3", "s4"]


def test_a_stable_site_is_preferred() -> None:
    a, b, c = Site("a").stable(0).tentative(1), Site("b").stable(0, 1).tentative(2), Site("c").stable(0, 1)
    corrector = reader("a", "b", "c")
    corrector.take([a.news(), b.news(), c.news()], 0)
    assert short(corrector.take([b.boundary(2).news(), c.boundary(2).news()], 2)) == ["undo(t1)", "s1"]
    assert corrector.live == "c"


def test_a_tentative_site_adds_only_what_is_later() -> None:
    """R23: no t_max is given twice, what lies between is lost, and the new site's undo revokes both sites' rows."""
    a, b = Site("a").stable(0).tentative(1, 2, 3), Site("b").stable(0).tentative(2, 3, 5)
    corrector = reader("a", "b")
    assert short(corrector.take([a.news(), b.news()], 0)) == ["s0", "t1", "t2", "t3"]
    assert short(corrector.take([b.tentative(6).news()], 2)) == ["t5", "t6"]
    assert short(corrector.take([b.undo().stable(1, 2).tentative(3).news()], 2)) == [
        "undo(t1 t2 t3 t5 t6)", "s1", "s2", "t3",
    ]  # fmt: skip


def test_what_another_site_has_undone_is_never_given() -> None:
    a, b = Site("a").stable(0), Site("b").stable(0).tentative(1).undo().tentative(2)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    assert short(corrector.take([b.boundary(1).news()], 2)) == ["t2"]


def test_a_site_that_is_behind_repeats_nothing() -> None:
    a, b = Site("a").stable(0, 1, 2), Site("b").stable(0).tentative(1, 2, 3)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    assert short(corrector.take([b.tentative(4).news()], 2)) == ["t3", "t4"]
    assert short(corrector.take([b.undo().stable(1).tentative(2, 3).news()], 2)) == ["undo(t3 t4)", "t3"]
    assert short(corrector.take([b.undo().stable(2, 3).rec_done().news()], 2)) == ["undo(t3)", "s3", "done"]


def test_a_site_that_is_late_is_as_good_as_silent() -> None:
    """Also one that goes on giving tentative rows, where another one has the stable ones."""
    a, b = Site("a").stable(0).tentative(1), Site("b").stable(0)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.stable(1).news()], 0)
    assert short(corrector.take([a.tentative(2).news(), b.stable(2).news()], 0.9)) == ["t2"]
    assert short(corrector.take([a.tentative(3).news(), b.tentative(4).news()], 1.1)) == [
        "t3",
        "undo(t1 t2 t3)",
        "s1",
        "s2",
        "t4",
    ]
    assert corrector.live == "b"


def test_nobody_is_left_for_a_site_that_lacks_the_next_row() -> None:
    a, b = Site("a").stable(0), Site("b").stable(5)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    assert short(corrector.take([a.stable(1).news(), b.boundary(6).news()], 2)) == ["s1"]
    assert corrector.live == "a"


def test_a_site_with_nothing_tentative_undoes_what_another_gave() -> None:
    a, b = Site("a").stable(0).tentative(1), Site("b").stable(0)
    corrector = reader("a", "b")
    corrector.take([a.news(), b.news()], 0)
    assert short(corrector.take([b.boundary(0).news()], 2)) == ["undo(t1)"]
    assert short(corrector.take([b.stable(1).news()], 2)) == ["s1"]


def test_any_site_may_give_the_next_stable_row() -> None:
    a, b = Site("a").stable(0), Site("b").stable(0, 1, 2)
    corrector = reader("a", "b", stable_only=True)
    assert short(corrector.take([a.news(), b.news()], 0)) == ["s0", "s1", "s2"]
    assert short(corrector.take([a.stable(1, 2, 3).news()], 0)) == ["s3"]


def test_what_is_kept_nowhere_is_said_to_be_missing() -> None:
    for stable_only in (False, True):
        a, b = Site("a").stable(4, 5), Site("b").stable(7)
        corrector = reader("a", "b", next_id=2, stable_only=stable_only)
        given = corrector.take([a.news(), b.news()], 0)
        assert short(given) == ["missing(2-3)", "s4", "s5"]
        assert given[0].next_id == 4


def test_a_site_that_may_still_give_a_row_is_waited_for() -> None:
    for stable_only in (False, True):
        a, b = Site("a").stable(4), Site("b").stable(0)
        corrector = reader("a", "b", next_id=2, stable_only=stable_only)
        assert short(corrector.take([a.news(), b.news()], 0)) == []
        assert short(corrector.take([b.stable(1, 2, 3).news()], 0.5)) == (["s2", "s3", "s4"] if stable_only else ["s2", "s3"])
        assert short(corrector.take([b.stable(4).news()], 0.5)) == ([] if stable_only else ["s4"])


class Row(BaseModel):
    n: int


def test_rows_are_of_the_readers_model() -> None:
    assert _make_row_factory(Row)({"n": 1}) == Row(n=1)
    assert _make_row_factory(None)({"n": 1}) == {"n": 1}


class RecordingFactory(CorrectedStream[Row]):
    """Reads these records of its one site, and then waits."""

    def __init__(self, records: list[OutputRecord]) -> None:
        super().__init__("q", "127.0.0.1:1", model=Row)
        self.records = records

    @contextmanager
    def _reading(
        self, topics: dict[str, str], positions: dict[str, LogPosition], until_now: bool = False
    ) -> Iterator[SiteReaders]:
        feeds = SiteReaders(until_now)
        feeds._waiting[""] = deque([[record for record in self.records if record.offset >= positions[""].offset]])
        feeds.end("")
        yield feeds


def test_a_row_that_is_not_of_the_model_is_an_error_after_all_rows_before_it() -> None:
    a = Site().stable(0, 1, 2, 3)
    a.records[2].fields["data"] = {"n": "two"}
    stream = RecordingFactory(a.records)
    rows = stream.stable()
    assert [row.n for row in islice(rows, 2)] == [0, 1]
    for again in (rows, stream.stable()):
        with pytest.raises(ValidationError):
            next(again)
        assert stream.place()["id"] == 2
    a.records[2].fields["data"] = {"n": 2}
    assert [row.n for row in islice(stream.stable(), 2)] == [2, 3]


def test_the_view_is_the_newest_row_of_every_key() -> None:
    a = Site().stable(0, 1).tentative(3, 2).undo().stable(2)
    view: View = View()
    seen = []
    for one in reader("a").take([a.news()], 0):
        assert view.take(one.change)
        seen.append(({key: row.data for key, row in view.items()}, view.is_tentative))
    assert seen == [
        ({0: 0}, False),
        ({0: 0, 1: 1}, False),
        ({0: 3, 1: 1}, True),
        ({0: 3, 1: 1, 2: 2}, True),
        ({0: 0, 1: 1}, False),
        ({0: 0, 1: 1, 2: 2}, False),
    ]
    assert not view.take(RecDone(None)) and len(view) == 3


# Whatever happens.


@st.composite
def site_logs(draw: st.DrawFn) -> list[Site]:
    """Two sites that each give the rows 0, 1, ... with tentative spells of their own."""
    sites = [Site("a"), Site("b")]
    for site in sites:
        at = 0
        for spell in draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=6)):
            rows, ahead = spell
            site.stable(*range(at, at + rows))
            at += rows
            site.boundary(min(at, 59))
            if ahead:
                site.tentative(*range(at, at + ahead))
                site.undo()
    return sites


@settings(max_examples=300, deadline=None, derandomize=True)
@given(site_logs(), st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.floats(0, 2)), max_size=40), st.booleans())
def test_any_interleaving_gives_each_stable_row_once(
    sites: list[Site], reads: list[tuple[bool, int, float]], stable_only: bool
) -> None:
    corrector = reader("a", "b", next_id=0, stable_only=stable_only)
    now = 0.0
    changes: list[Change] = []
    for is_a, count, seconds in reads:
        now += seconds
        site = sites[not is_a]
        batch, site.taken = site.records[site.taken : site.taken + count], min(site.taken + count, len(site.records))
        changes += [one.change for one in corrector.take([(site.name, batch)] if batch else [], now)]
    for site in sites * 2:
        now += 2
        changes += [one.change for one in corrector.take([site.boundary(0).news()], now)]
    ids = [change.id for change in changes if isinstance(change, Stable)]
    assert ids == list(range(max(record.id for site in sites for record in site.records) + 1))
    held: list[Change] = []
    for change in changes:
        if isinstance(change, Undo):
            count = len(change.revoked)
            assert count and held[-count:] == list(change.revoked)
            del held[-count:]
        elif isinstance(change, Stable | Tentative):
            held.append(change)
    assert [kind for kind, _ in groupby(held, type)] in ([Stable], [Stable, Tentative])
    tentative = [change.data for change in held if isinstance(change, Tentative)]
    assert tentative == sorted(set(tentative))


# Frames


def test_a_frame_that_cannot_be_made_consumes_nothing() -> None:
    stream = RecordingFactory(Site().stable(0, 1).records)
    with pytest.raises(UserError, match=r"types\.n: does not fit"):
        stream.frame(types={"n": "bool"}).to_arrow()
    stream = RecordingFactory(Site().stable(0, 1).write("odd", 3).records)
    stream.records[-1].fields.pop("type")
    for _ in range(2):
        with pytest.raises(KeyError):
            stream.frame("changes")
    assert stream.place()["id"] is None


def test_a_frame_ends_before_a_gap_and_the_next_one_says_what_is_missing() -> None:
    stream = RecordingFactory(Site().stable(0, 1, 5, 6).records)
    assert stream.frame().to_arrow().column("n").to_pylist() == [0, 1]
    with pytest.raises(MissingRows, match="rows 2 to 4"):
        stream.frame()
    assert stream.frame().to_arrow().column("n").to_pylist() == [5, 6]


def test_frames_refuse_what_they_cannot_show() -> None:
    rows: list[dict] = [{"time": "2013-01-01T00:00:00Z", "_cause": 1}]
    for make, problem in (
        (lambda: frame_of_changes([RecDone(None), Stable(0, rows[0], None, datetime.now(UTC), "", 0, 0)], {}), "column _cause"),
        (lambda: check_frame("all", {}), "choose one of stable, latest, changes"),
        (lambda: check_frame("stable", {"n": "long"}), "choose one of string, int"),
    ):
        with pytest.raises(UserError, match=problem):
            make()
    assert frame_of_rows(rows, {}).to_arrow().schema.field("time").type == pa.timestamp("us", tz="UTC")
    assert frame_of_rows([], {"n": "int"}).to_arrow().schema == pa.schema([("n", pa.int64())])


def test_without_pandas_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install pandas, or use to_arrow\(\)"):
        frame_of_rows([{"n": 1}], {}).to_pandas()


def test_a_read_that_ends_takes_what_another_site_has_beyond_the_live_one() -> None:
    a, b = Site("a").stable(0).tentative(1), Site("b").stable(0, 1, 2)
    reader = Corrector({"a": LogPosition(0, 0), "b": LogPosition(0, 0)}, lambda data: data["n"], 0.0)
    changes = reader.take([a.news(), b.news()], 0.1) + reader.finish()
    assert [type(each.change) for each in changes] == [Stable, Tentative, Undo, Stable, Stable]
    assert reader.finish() == []


# Waiting without a thread of one's own


class LateStream(CorrectedStream[dict]):
    """Its first row comes when nobody waits for it any more."""

    def stable(self) -> Iterator[dict]:
        with self._reading({}, {}) as feeds:
            while not feeds.is_closed:
                feeds.take(0.01)
            self._next_id = 1
            yield {"n": 0}


def test_a_reader_that_is_cancelled_has_not_taken_what_it_was_not_given() -> None:
    async def read(stream: CorrectedStream[dict]) -> None:
        async with asyncio.timeout(0.1):
            async for _ in stream.astable():
                pass

    with LateStream("q", "127.0.0.1:1") as stream:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                asyncio.run(read(stream))
            assert stream.place()["id"] is None


def test_quiet_streams_leave_the_event_loops_threads_to_others() -> None:
    """It has few, and needs them itself, as to look up names."""

    async def read(stream: CorrectedStream[dict]) -> None:
        async for _ in stream.astable():
            pass

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with asyncio.timeout(30):
            with LateStream("q", "127.0.0.1:1") as stream:
                reading = asyncio.create_task(read(stream))
                while stream._feeds is None:
                    await asyncio.sleep(0.01)
                assert await asyncio.to_thread(lambda: "free") == "free"
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading

    asyncio.run(main())


# What is no outage


def test_an_option_that_kafka_does_not_know_is_an_error() -> None:
    with CorrectedStream("q", "127.0.0.1:1", sasl_plain_user="me") as stream, pytest.raises(KafkaConfigurationError):
        next(stream.stable())


def test_an_outage_is_waited_for_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    stream = CorrectedStream("q", "127.0.0.1:1", bootstrap_timeout_ms=50)

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "boreal.client"]

    def end() -> None:
        wait(lambda: bool(said()))
        time.sleep(1.0)  # long enough for a few tries more
        stream.close()

    ending = threading.Thread(target=end)
    ending.start()
    assert list(stream.stable()) == []
    ending.join()
    assert said() == [
        "q.stable cannot be read at present; it is tried again: KafkaTimeoutError('Unable to bootstrap from 127.0.0.1:1')"
    ]


def test_a_record_of_somebody_elses_is_an_error_after_what_came_before_it() -> None:
    feeds = SiteReaders()
    feeds._waiting["a"] = deque([[OutputRecord(0, 0, 1, {})]])
    feeds.fail(KeyError("incarnation"))
    assert len(feeds.take(0.1)) == 1
    with pytest.raises(KeyError):
        feeds.take(0.1)


# In an application


IN_AN_APPLICATION = """
import sys
import boreal
from boreal.client import CorrectedStream
with boreal.CorrectedStream("q", "127.0.0.1:1") as stream:
    assert isinstance(stream, CorrectedStream)
import kafka
print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])))
"""


def test_an_application_may_have_packages_that_are_called_as_ours_are(tmp_path: Path) -> None:
    directory = make_foreign_packages(tmp_path)
    run = run_python(directory, "-c", IN_AN_APPLICATION, *NAMES, "kafka", "pyarrow", "numpy", "yaml")
    assert (run.stdout, run.stderr, run.returncode) == ("kafka\n", "", 0)
