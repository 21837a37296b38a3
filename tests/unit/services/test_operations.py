"""How a query is, by what supervisors and processes say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from boreal.model.errors import UserError
from boreal.query.spec import load_query
from deployment.change_preview import refuse_other_structure
from deployment.evolution import LEAVING, evolve, state_of
from deployment.layout import Layout, make_layout
from deployment.operator_hosts import answers_topic, orders_topic
from deployment.placement_record import RoleReport, WorkerReport
from deployment.query_record import Beside, QueryRecord
from deployment.status_fields import STACK
from logs.checkpoints import StoreUnavailableError
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.topics import query_topics
from services.stack import operations as module
from services.stack.children import query_children
from services.stack.operations import Operations
from tests.described import SOMETIMES, assert_described
from tests.harness import STREAM, query_of


def record(revision: int, paused: bool = False) -> QueryRecord:
    return QueryRecord("q", load_query(query_of()).dump(), revision, paused)


@pytest.fixture
def operations() -> Operations:
    return Operations(ServiceSettings(sites={"a": KafkaSettings(bootstrap="127.0.0.1:1")}))


def say(monkeypatch: pytest.MonkeyPatch, operations: Operations, **query: Any) -> None:
    """What the supervisor says of q; all that it needs runs, unless it is paused."""
    state = {"revision": 1, "paused": False, "ready": True, "problem": None, **query}
    running = [] if state["paused"] else [child.name for child in query_children(record(1), ("a",), ("a",))]
    fields = {"kind": "node", "query": "q", "pid": 1, "state": "running", "restarts": 0}
    supervisor = {"ready": state["ready"], "processes": [{"name": name, **fields} for name in running], "queries": {"q": state}}
    monkeypatch.setattr(operations, "statuses", lambda: {"supervisor": supervisor})
    monkeypatch.setattr(operations, "queries", lambda: {"q": record(1)})
    monkeypatch.setattr(operations, "reports", dict)


def test_a_new_objective_restarts_no_process():
    spec = {**query_of(), "slo": "99.9%/7d"}
    changed = QueryRecord("q", load_query(spec).dump(), 2)
    assert query_children(changed, ("a",), ("a",)) == query_children(record(1), ("a",), ("a",))


def test_how_a_stream_takes_its_records_may_change_and_restarts_its_sources_alone():
    query = load_query(query_of())
    [stream, *_] = query.streams
    streams = query.dump()["streams"]
    before = {child.name: child for child in query_children(record(1), ("a",), ("a",))}
    for change in ({"late": "clamp"}, {"ahead": "1h"}, {"idle": "1s"}, {"types": "refuse"}):
        changed = query.changed(streams={**streams, stream: {**streams[stream], **change}})
        refuse_other_structure(record(1), changed)
        after = {child.name: child for child in query_children(QueryRecord("q", changed.dump(), 2), ("a",), ("a",))}
        assert after.keys() == before.keys()
        other = {name.partition(".")[0] for name, child in after.items() if child != before[name]}
        assert other == {"source"}, change
    changed = query.changed(streams={**streams, stream: {**streams[stream], "disorder": "1h"}})
    with pytest.raises(UserError, match=rf"streams\.{stream}\.disorder: .*cannot change while it runs"):
        refuse_other_structure(record(1), changed)


def test_a_role_in_a_worker_that_has_joined_runs_though_no_supervisor_says_so(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = {name: RoleReport(3) for name in ("node.q-2.r0", "egress.q.a", "source.other.s")}
    worker = WorkerReport("w", "id", "machine", "1", 3, roles).fields()
    monkeypatch.setattr(operations, "statuses", lambda within_s: {"worker.a.w": worker})
    assert operations.processes_of("q", {"q": record(1)}) == ["egress.q.a", "node.q-2.r0"]


def test_a_change_looks_at_topics_only_where_it_needs_others(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    spec = query_of()
    spec["streams"] = {name: {**stream, "topic": name} for name, stream in spec["streams"].items()}
    known = QueryRecord("q", load_query({**spec, "engine": "native"}).dump(), 1)
    monkeypatch.setattr(operations, "queries", lambda: {"q": known})
    monkeypatch.setattr(operations, "prepare", lambda queries, layouts: looked.extend(query.name for query in queries))
    monkeypatch.setattr(operations, "_update_among", lambda name, decide, by: decide(known, {}))
    assert operations.set("q", {"delay_threshold": "9s"}).spec["delay_threshold"] == "9s" and not looked
    assert operations.set("q", {"replicas": 3}).spec["replicas"] == 3 and looked == ["q"]


def test_a_change_of_a_record_that_was_heard_looks_at_all_records_only_before_it_refuses(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    spec = query_of()
    spec["streams"] = {name: {**stream, "topic": name} for name, stream in spec["streams"].items()}
    newest = QueryRecord("q", load_query({**spec, "engine": "native"}).dump(), 2)
    heard = replace(newest, revision=1)

    def expect_newest(record: QueryRecord | None) -> None:
        if record != newest:
            raise UserError("If-Match", 2, "is not the revision", "read it again")

    def look() -> dict[str, QueryRecord]:
        looks.append(newest.revision)
        return {"q": newest}

    monkeypatch.setattr(operations, "queries", look)
    monkeypatch.setattr(operations, "_update_among", lambda name, decide, by: decide(newest, {}))
    change = {"delay_threshold": "9s"}
    assert operations.set("q", change, heard=newest).revision == 3 and not looks
    assert operations.set("q", change, expect_newest, heard=heard).revision == 3 and len(looks) == 1
    with pytest.raises(UserError, match="delay_threshold"):
        operations.set("q", {"delay_threshold": "soon"}, heard=newest)
    assert len(looks) == 2


@pytest.mark.parametrize(("running", "engine"), [("native", "native"), ("spark", "spark"), (None, "spark")])
def test_a_file_that_names_no_engine_keeps_that_of_the_query_that_runs(
    operations: Operations, monkeypatch: pytest.MonkeyPatch, running: str | None, engine: str
) -> None:
    spec = {field: value for field, value in query_of().items() if field != "engine"}
    spec |= {"streams": {name: {**stream, "topic": name} for name, stream in spec["streams"].items()}, "delay_threshold": "9s"}
    old = QueryRecord("q", load_query({**spec, "engine": running}).dump(), 1) if running is not None else None
    monkeypatch.setattr(operations, "queries", lambda: {"q": old} if old is not None else {})
    monkeypatch.setattr(operations, "prepare", lambda queries, layouts: None)
    monkeypatch.setattr(operations, "_update_among", lambda name, decide, by: decide(old, {}))
    assert operations.apply(load_query(spec)).spec["engine"] == engine


def test_a_query_is_live_once_all_that_it_needs_runs_as_its_record_says(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, operations)
    assert operations.liveness(record(1)).is_ready
    assert not operations.liveness(record(2)).is_ready


def test_how_far_sources_are_is_in_the_status(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"process": "source.q.a", "state": "idle", "last_boundary": None, "rows": 3, "dlq": 2, "ahead": 1, "pid": 7}
    monkeypatch.setattr(operations, "statuses", lambda: {"source.q.a": said, "node.q.r0": {}})
    monkeypatch.setattr(operations, "reports", dict)
    [(name, source)] = operations.details()["sources"].items()
    assert (name, source["state"], source["dlq"], source["ahead"], source["clamped"]) == ("q.a", "idle", 2, 1, None)
    assert "pid" not in source


def test_how_queries_answer_is_in_the_status(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"memory_bytes": 1, "cores": 0.1}
    egresses = [{"records_wait_for": None}, {"records_wait_for": "a registry"}]
    said = {
        "query": "q", "state": "STABLE", "tentative_share": 0.5, "resources": resources, "journal": [], "egresses": egresses,
    }  # fmt: skip
    monkeypatch.setattr(operations, "statuses", dict)
    monkeypatch.setattr(operations, "reports", lambda: {"q": said})
    [(name, answers)] = operations.details()["answers"].items()
    assert name == "q" and (answers["tentative_share"], answers["resources"]["cores"]) == (0.5, 0.1)
    assert "journal" not in answers and answers["records_wait_for"] == "a registry"
    assert operations.answers("q") == answers and set(operations.answers("other").values()) == {None}


def test_a_paused_query_is_not_live_and_waits_for_nothing(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, operations, paused=True)
    liveness = operations.liveness(record(1, paused=True))
    assert not liveness.is_ready and not liveness.is_stable and liveness.waits_for == ()


def test_a_problem_of_an_older_revision_is_none_of_the_newer_one(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, operations, ready=False, problem="has no such operator")
    assert operations.liveness(record(1)).problem == "has no such operator"
    assert operations.liveness(record(2)).problem is None


def test_the_status_says_why_a_query_cannot_run(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, operations, ready=False, problem="has no such operator")
    status = operations.status()
    assert status["problems"] == {"q": "has no such operator"} and not status["ready"]
    say(monkeypatch, operations)
    assert operations.status()["problems"] == {}


def test_all_that_the_status_says_is_described(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, operations, ready=False, problem="has no such operator")
    assert_described(operations.status(), STACK, may_lack=SOMETIMES)
    supervisor = operations.statuses()["supervisor"]
    off = {"alpha_x_ms": 1.0, "clock_error_ms": 2_000.0}
    worker = {**WorkerReport("w", "id", "machine", "1", 3, {"node.q.r0": RoleReport(3)}).fields(), "site": "a", "host": "h"}
    statuses = {
        "supervisor": supervisor,
        "source.q.a": {"state": "idle"},
        "spark.q.r0": {"ready": True},
        "node.q.r0": off,
        "worker.a.w": {**worker, "problem": None},
    }
    monkeypatch.setattr(operations, "statuses", lambda: statuses)
    monkeypatch.setattr(operations, "reports", lambda: {"q": {"state": "STABLE"}})
    assert_described(operations.status(), STACK)


class Topics:
    """The topics of a site, and its admin client."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)

    def make_admin(self) -> Topics:
        return self

    def list_topics(self) -> list[str]:
        return sorted(self.names)

    def delete_topics(self, names: list[str]) -> None:
        self.names -= set(names)

    def close(self) -> None:
        pass


class Records(dict[str, QueryRecord]):
    """The registry."""

    def load(self) -> dict[str, QueryRecord]:
        return dict(self)

    def update(  # type: ignore[override]
        self, name: str, decide: Callable[[QueryRecord | None], QueryRecord], by: str | None = None
    ) -> QueryRecord:
        return self.update_among(name, lambda old, _: decide(old))

    def update_among(
        self, name: str, decide: Callable[[QueryRecord | None, Mapping[str, QueryRecord]], QueryRecord], by: str | None = None
    ) -> QueryRecord:
        self[name] = decide(self.get(name), dict(self))
        return self[name]

    def delete(self, name: str, by: str | None = None) -> None:
        del self[name]


class Checkpoints:
    is_away = False

    def __init__(self, client: object, prefix: str) -> None:
        pass

    def forget(self) -> None:
        if self.is_away:
            raise StoreUnavailableError("away")


OPERATORS = {
    "some": {"filter": "a", "where": "v > 1"},
    "count": {"aggregate": "a", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)"}},
    "all": {"join": ["some", "count"], "on": ["k"], "within": "1s"},
}
FRAGMENTS = {
    "first": {"operators": ["some"]},
    "other": {"operators": ["count"], "shards": 2},
    "last": {"operators": ["all"]},
}
SHOP = {
    **query_of(OPERATORS, fragments=FRAGMENTS, x="9s", engine="spark", latest=True),
    "name": "shop",
    "streams": {"a": {**STREAM, "topic": "shop.orders.paid"}},
}
NOT_OURS = {"shop.orders.paid", "shop.orders.returned", "shop.answers.v2", "shop.log.visits", "shopping.stable"}


def made_by(layout: Layout) -> set[str]:
    return {spec.name for specs in query_topics(layout).values() for spec in specs}


def test_a_query_that_is_deleted_takes_its_own_topics_with_it_and_none_that_are_only_called_alike(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of replicas that it had once; and where the first attempt does not come to its end."""
    layout = make_layout(load_query(SHOP), ("a",))
    own = made_by(layout) | {name.replace("r1", "r2") for name in made_by(layout)}
    assert {orders_topic("shop", "r2"), answers_topic("shop", "r0"), "shop.log.a-40other", "shop.log.count.r2"} <= own
    site, records = Topics(own | NOT_OURS), Records(shop=QueryRecord("shop", load_query(SHOP).dump(), 1))
    monkeypatch.setattr(operations, "clusters", {"a": site})
    monkeypatch.setattr(operations, "_registry", records)
    monkeypatch.setattr(operations, "statuses", lambda within_s=0: {})
    monkeypatch.setattr(module, "RedisCheckpointStore", Checkpoints)
    monkeypatch.setattr(Checkpoints, "is_away", True)
    with pytest.raises(UserError, match="try again"):
        operations.delete("shop", lambda names: None)
    assert records["shop"].paused
    monkeypatch.setattr(Checkpoints, "is_away", False)
    operations.delete("shop", lambda names: None)
    assert site.names == NOT_OURS and not records
    with pytest.raises(UserError, match="no such query"):
        operations.delete("shop", lambda names: None)


def test_a_version_is_deleted_once_all_supervisors_have_read_that_it_leaves(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has not may be about to start what the record before asked for."""
    streams = {name: {**stream, "topic": name} for name, stream in query_of()["streams"].items()}
    spec = {**query_of(), "streams": streams, "engine": "native"}
    wider = {**spec, "shards": 2}
    record = evolve(QueryRecord("q", load_query(spec).dump(), 1), load_query(wider), "earliest")
    version = record.run(2)
    own, others = made_by(make_layout(version.query, ("a",), version.name)) - {"q.dlq"}, {*streams, "q.dlq"}
    site, records, waited_for = Topics(own | others), Records(q=record), list[Sequence[str]]()
    supervisor: dict[str, Any] = {"processes": [], "queries": {"q": {"revision": record.revision}}}
    known: list[dict[str, Any]] = [{"supervisor.a": supervisor}, {"supervisor.a": {**supervisor, "queries": None}}]

    def look(within_s: float) -> dict[str, Any]:
        assert site.names >= own, "nothing is deleted before"
        return known[0] if known else {"supervisor.a": {**supervisor, "queries": {"q": {"revision": record.revision + 1}}}}

    def wait(names: Collection[str]) -> None:
        waited_for.append(sorted(names))
        known.pop(0)

    monkeypatch.setattr(operations, "clusters", {"a": site})
    monkeypatch.setattr(operations, "_registry", records)
    monkeypatch.setattr(operations, "statuses", look)
    monkeypatch.setattr(module, "RedisCheckpointStore", Checkpoints)
    assert operations.roll_back("q", wait).beside is None
    assert waited_for == [["supervisor.a"], ["supervisor.a"]]
    assert site.names == others


def test_a_settle_that_is_interrupted_at_any_point_is_made_again(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While processes end, and while a server is away; nothing but what is the version's goes."""
    streams = {name: {**stream, "topic": name} for name, stream in query_of()["streams"].items()}
    spec = {**query_of(), "streams": streams, "engine": "native"}
    evolved = evolve(QueryRecord("q", load_query(spec).dump(), 1), load_query({**spec, "shards": 2}), "earliest")
    assert evolved.beside is not None
    beside = Beside(1, evolved.spec, "earliest", takes_over=False)
    taken_over = replace(evolved, spec=evolved.beside.spec, version=2, since=1, beside=beside)
    own, kept = (made_by(make_layout(run.query, ("a",), run.name)) - {"q.dlq"} for run in reversed(taken_over.runs()))
    own -= {topic for topic in own if topic.partition(".")[2] in ("out", "stable")}
    site, records = Topics(own | kept | streams.keys()), Records(q=taken_over)
    process = {"name": "node.q.r0", "kind": "node", "query": "q"}
    supervisor: dict[str, Any] = {"processes": [process], "queries": {"q": {"revision": taken_over.revision + 1}}}
    monkeypatch.setattr(operations, "clusters", {"a": site})
    monkeypatch.setattr(operations, "_registry", records)
    monkeypatch.setattr(operations, "statuses", lambda within_s: {"supervisor": supervisor})
    monkeypatch.setattr(module, "RedisCheckpointStore", Checkpoints)

    def interrupt(names: Collection[str]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operations.settle("q", interrupt)
    assert state_of(records["q"]) == LEAVING and site.names >= own
    supervisor["processes"] = []
    monkeypatch.setattr(Checkpoints, "is_away", True)
    with pytest.raises(UserError):
        operations.settle("q", interrupt)
    assert state_of(records["q"]) == LEAVING
    monkeypatch.setattr(Checkpoints, "is_away", False)
    assert operations.settle("q", interrupt).beside is None
    assert records["q"].version == 2 and site.names == kept | streams.keys()
