"""Watches one query. Pure: the reports of its processes and the time in; trims, journal entries and the events of its failures
out. `status` is the known state of the query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from boreal.model.frames import State
from boreal.query.plan import Edge
from deployment import claims, failure_signs, stalls
from deployment.claims import LogClaims, Trim
from deployment.events import RecordedEvent
from deployment.evolution import EgressReport, VersionProgress, as_of, progress_of
from deployment.failure_recorder import FailureRecorder
from deployment.journal import FailureJournal, JournalEntry
from deployment.layout import Layout, layout_of
from deployment.operator_hosts import facts_of_job
from deployment.query_record import QueryRecord
from deployment.skew import ProcessStatus, clock_warnings
from deployment.slo import ServiceLevel
from deployment.stalls import StallDetector
from formats.control_messages import ControlItem, instance_of
from formats.json_text import moment
from reconcile.events import InstanceId

WatchEffect = Trim | JournalEntry | RecordedEvent

SILENT_AFTER_US = 5_000_000
"""A process sends its status every second. It is silent after five missed ones."""

PROBLEM_KEPT_US = 30_000_000
"""How long the problem that has ended a node is reported after it was heard last: long enough for a node that fails again."""

LATE_AFTER_US = 120_000_000
"""A process that is not heard for so long after its query, or the monitor, has begun, has failed: a Spark job may take a minute
to start on a busy machine."""

STALL_AFTER_LEAST_US = 10_000_000
"""Minimum time without progress before an instance counts as stalled."""
STALL_AFTER_X = 10
"""The same, as a multiple of X; the larger of the two counts."""

STARTING = "STARTING"
"""State of a process that a monitor that has just started has not heard yet."""
FAILURE = "FAILURE"
"""State of a silent process."""
PAUSED = "PAUSED"
"""State of everything in a paused query."""

FROZEN = "frozen"
"""What a supervisor says of a process that a signal has stopped."""

_INPUT_STATES = {STARTING: "starting", PAUSED: "paused", FAILURE: "failed"}
"""State of an input whose source is silent."""

_BEST_FIRST = [*(state.value for state in (State.STABLE, State.UP_FAILURE, State.STABILIZATION, State.RECOVERING)), STARTING]
_NO_DELAYS = {"p50": None, "p99": None, "max": None}
_NO_COUNTS = {"stable": 0, "tentative": 0, "undone": 0}


class WatchedQuery:
    """One query, as known to the monitor. Times are in us. Call `tick` about once a second."""

    def __init__(self, record: QueryRecord, sites: tuple[str, ...], now: int) -> None:
        """UserError if the query cannot be planned."""
        self.sites = sites
        self.record = record
        self.layout = layout_of(record, sites)
        self.plan = self.layout.plan
        self.instances = _instances_of(self.layout)
        self.begun_at = now
        self.journal = FailureJournal()
        self.claims = LogClaims(now)
        self.stalls = StallDetector(STALL_AFTER_LEAST_US)
        self.failures: FailureRecorder | None = None
        """None as long as it is not known what was recorded before; what is seen meanwhile is recorded later."""
        self.served = ServiceLevel(record.public)
        self.slo = record.query.slo
        self._processes: dict[str, ProcessStatus] = {}
        self._heard_at: dict[str, int] = {}
        self._problems: dict[str, tuple[str, int]] = {}
        self._frozen: dict[str, tuple[frozenset[str], int]] = {}
        self._seen: dict[str, tuple[str, str]] | None = None
        self.is_beside = False
        """Whether nobody reads its results: then its output logs keep what an egress has not read."""
        self.evolution: dict[str, Any] | None = None
        """How the evolution of the query gets on, as statuses show it."""
        self._expect(now)

    # Events

    def change(self, record: QueryRecord, now: int) -> None:
        """The query has changed. UserError if it cannot be planned; nothing changes then."""
        layout = layout_of(record, self.sites)
        if self.record.paused and not record.paused:
            self.begun_at = now
        self.record, self.layout, self.plan, self.slo = record, layout, layout.plan, record.query.slo
        self.instances = _instances_of(layout)
        self._expect(now)

    def record_failures(self, recorded: Iterable[RecordedEvent]) -> None:
        """Record the failures of the query, and what its clients are given, from now on. recorded: the events of it that there
        are."""
        self.failures = FailureRecorder(self.record.public)
        for event in recorded:
            self.failures.resume(event)
            self.served.resume(event)

    def _expect(self, now: int) -> None:
        """Whom the plan makes us hear from, and how soon they may count as stalled."""
        self.claims.expect(self.layout.readers(), self.plan.retention_us, now)
        self.stalls.limit_us = max(STALL_AFTER_LEAST_US, STALL_AFTER_X * self.plan.delay_threshold_us)
        for who in self.stalls.stalled:
            if who not in self.instances:
                self.stalls.forget(who)

    def resume(self, status: ProcessStatus) -> None:
        """Continue from the last status of an earlier incarnation of the monitor: its journal and its known states. KeyError,
        TypeError or ValueError if `status` is not such a status; nothing changes then."""
        seen = {str(name): (str(state), str(text)) for name, state, text in status["seen"]}
        self.journal.resume(status["journal"])
        self._seen = seen

    def hear(self, items: Iterable[ControlItem], now: int) -> list[WatchEffect]:
        """Items that a process has sent on the control topic. KeyError, TypeError or ValueError if an item is malformed."""
        effects: list[WatchEffect] = []
        for item in items:
            if "acknowledge" in item:
                said = item["acknowledge"]
                positions = [(str(key), int(first_id)) for key, first_id in said["positions"]]
                effects += self._entries(self.claims.acknowledge(instance_of(said["reader"]), positions, now), now)
            elif "message" in item:
                effects += self._entries(self.claims.hear(instance_of(item["message"]["sender"]), now), now)
        return effects

    def take(self, status: ProcessStatus, now: int) -> list[WatchEffect]:
        """The status of a process. Errors as in `hear`."""
        kind, _, rest = str(status["process"]).partition(".")
        name = rest.partition(".")[2]
        effects: list[WatchEffect] = []
        if kind == "node":
            if status.get("problem"):
                self._problems[status["process"]] = str(status["problem"]), now
            for entry in status["instances"]:
                who = InstanceId(entry["fragment"], entry["replica"], int(entry["shard"]))
                effects += self._entries(self.claims.hear(who, now), now)
                if who in self.instances:
                    effects += self._entries(self.stalls.observe(who, entry["position"], self._inputs_of(who), now), now)
        elif kind == "egress" and name in self.sites:
            effects += self._entries(self.claims.hear(self.layout.egress_instance(name), now), now)
        self._processes[status["process"]] = status
        self._heard_at[status["process"]] = now
        if self.failures is not None and not self.record.paused:
            if kind == "node":
                effects += failure_signs.see_node(self._regarding(self.failures), status, now / 1_000)
            elif kind == "egress" and name in self.sites:
                effects += failure_signs.see_egress(self._regarding(self.failures), name, status, now / 1_000)
                if self.slo is not None and "new_rows" in status:
                    is_tentative = status.get("tentative", {}).get("outstanding", 0) > 0
                    counts = status["new_rows"], status["violations"]
                    effects += self.served.see(name, *counts, is_tentative, now / 1_000)
        return effects

    def see_supervisor(self, status: ProcessStatus, now: int) -> None:
        """The status of a supervisor, which sees what processes cannot say of themselves. Errors as in `hear`."""
        mine = {self.record.name, self.record.public, *self.layout.named_sources}
        frozen = (each for each in status["processes"] if each["state"] == FROZEN and each["query"] in mine)
        self._frozen[status["process"]] = frozenset(str(each["name"]) for each in frozen), now

    def note_damage(self, instance: str, number: int, now: int) -> list[WatchEffect]:
        """A checkpoint in the store is damaged."""
        text = f"checkpoint {number} is damaged; an older one, or the log, is used instead"
        return [self.journal.enter(JournalEntry(now // 1_000, "checkpoint", instance, text, is_bad=True))]

    def needs_of_sources(self) -> dict[tuple[str, str], int]:
        """The first id that its instances need, of each log of its sources: by the name of these and 'stream/partition'.
        Another version, also of another query, may read these logs too."""
        return {
            (self.layout.sources_of(edge.operator), log.key): self.claims.needed_of(log.key)
            for edge in self.plan.sources
            for _, log in self.layout.source_logs(edge.operator)
        }

    def states_to_begin_with(self) -> frozenset[tuple[str, int]] | None:
        """The checkpoints, each by its owner and number, with which instances of this version may still begin, since the logs
        hold the rows that follow (`deployment.carried_states`). None while these are being chosen. Other threads may call
        this."""
        shared, may_be_trimmed = self.record.shared, self.claims.needed
        if shared is None or shared.states is None:
            return frozenset()
        if shared.first_ids is None:
            return None
        found = []
        for key, place in shared.states.items():
            fragment, _, shard = key.rpartition("/")
            inputs = self.layout.input_logs(InstanceId(fragment, "", int(shard)))
            if all(may_be_trimmed.get(each, 0) <= shared.first_ids.get(each, 0) for each in inputs):
                found.append(place)
        return frozenset(found)

    def tick(self, now: int, others: Mapping[str, int] = claims.NO_OTHERS) -> list[WatchEffect]:
        """Time has passed. others: what other versions need of logs that this one reads; see `needs_of_sources`."""
        for who in self.instances:
            if self.newest(f"node.{self.record.name}.{who.replica}", now) is None:
                self.stalls.forget(who)
        effects: list[WatchEffect] = []
        claim_effects = self.claims.tick(now, not self.record.paused and not self.is_beside, others)
        effects += self._entries(claim_effects, now)
        if self.record.paused or self.slo is None:
            effects += self.served.stop(now / 1_000)
        return effects + self._changes(now) + self._failure_signs(now)

    def progress(self, now: int) -> VersionProgress | None:
        """How far its results are; None if not all of it is heard."""
        entries = []
        for name in (f"node.{self.record.name}.{replica}" for replica in self.layout.replicas):
            if (said := self.newest(name, now)) is not None:
                heard_at = self._heard_at[name]
                entries += [{**entry, "position": as_of(now, entry["position"], heard_at)} for entry in said["instances"]]
        found = progress_of(self.plan, entries)
        if found is None:
            return None
        jobs = [f"spark.{self.record.name}.{each}" for each in self.layout.replicas if self.layout.remote_instances(each)]
        return replace(found, starting=tuple(job for job in jobs if not (self.newest(job, now) or {}).get("ready")))

    def egress_report(self, site: str, now: int) -> EgressReport | None:
        """What the egress of a site says of itself; None if it is silent, or of another program."""
        name = f"egress.{self.record.public}.{site}"
        said = self.newest(name, now)
        return EgressReport.of(said, self._heard_at[name], now) if said is not None and "version" in said else None

    def end(self, now: int) -> list[WatchEffect]:
        """The process that watches ends, in good order: what is counted up to now is recorded."""
        return [*self.served.stop(now / 1_000)]

    def _regarding(self, failures: FailureRecorder) -> FailureRecorder:
        """The recorder, with what is in force."""
        spec = self.record.spec
        x_ms = self.plan.delay_threshold_us / 1_000
        failures.regime = {"x_ms": x_ms, "reconcile": spec["reconcile"], "policy": spec["policy"]}
        return failures

    def _failure_signs(self, now: int) -> list[RecordedEvent]:
        """What follows of failures because time has passed."""
        if self.failures is None:
            return []
        failures, now_ms = self._regarding(self.failures), now / 1_000
        if self.record.paused:
            return failures.end("paused", now_ms)
        egresses = {f"egress.{site}": f"egress.{self.record.public}.{site}" for site in self.sites}
        nodes = {str(who): f"node.{self.record.name}.{who.replica}" for who in self.instances}
        processes = {**nodes, **egresses}
        # One that was never heard may still be on its way; it is missed when it should have come long ago.
        is_late = now - self.begun_at > LATE_AFTER_US
        expected = [name for name, process in processes.items() if is_late or process in self._heard_at]
        silent = [name for name in expected if self.newest(processes[name], now) is None]
        events = failure_signs.see_silent(failures, silent, now_ms) if self._absent(now) == FAILURE else []
        return events + failures.keep(processes, now_ms) + failures.settle(now_ms)

    # State

    def status(self, now: int) -> dict[str, Any]:
        """The query's status as JSON: the fields of GET /queries/NAME/status, and more. Unknown fields are None."""
        egresses = [self._egress(site, now) for site in self.sites]
        # Clients see the results of the best egress. The egresses of all sites are listed as well.
        best = min(egresses, key=lambda egress: _rank(egress["state"]))
        replicas = [self._replica(who, now) for who in self.instances]
        alphas = [replica["alpha_x_ms"] for replica in replicas if replica["alpha_x_ms"] is not None]
        return {
            "v": 1,
            "process": f"query:{self.record.public}",
            "kind": "query",
            "query": self.record.public,
            "name": self.record.public,
            "at_ms": now / 1_000,
            "revision": self.record.revision,
            "version": self.record.version,
            "evolution": self.evolution,
            "paused": self.record.paused,
            "ready": self._is_ready(best, replicas),
            "state": PAUSED if self.record.paused else best["state"],
            "x_ms": self.plan.delay_threshold_us / 1_000,
            "alpha_x_ms": min(alphas, default=None),
            "delay_ms": best["delay_ms"],
            "violations": sum(egress["violations"] for egress in egresses),
            "slo": None if self.slo is None else self.served.report(self.slo, now / 1_000),
            "inputs": [self._input(name, now) for name in self._streams],
            "replicas": replicas,
            "jobs": [self._job(replica, now) for replica in self.layout.replicas if self.layout.remote_instances(replica)],
            "egresses": egresses,
            "tentative": best["tentative"],
            "tentative_share": tentative_share(best["counts"]),
            "resources": self._resources(now),
            "counts": best["counts"],
            "claims": {
                "lost": [str(who) for who in self.claims.lost],
                "trimmed_before": dict(sorted(self.claims.needed.items())),
            },
            "stalled": [str(who) for who in self.stalls.stalled],
            "frozen": sorted(
                name for names, heard_at in self._frozen.values() if now - heard_at <= SILENT_AFTER_US for name in names
            ),
            "clock": clock_warnings({name: said for name in self._processes if (said := self.newest(name, now)) is not None}),
            "notes": list(self.plan.notes),
            "journal": self.journal.dump(),
            "seen": [[name, *state] for name, state in sorted((self._seen or {}).items())],
        }

    @property
    def _streams(self) -> list[str]:
        return sorted({edge.operator for edge in self.plan.sources})

    def newest(self, process: str, now: int) -> ProcessStatus | None:
        """The last status of a process; None if it is silent."""
        heard_at = self._heard_at.get(process)
        return self._processes[process] if heard_at is not None and now - heard_at <= SILENT_AFTER_US else None

    def _absent(self, now: int) -> str:
        """The state of a process that is silent."""
        if self.record.paused:
            return PAUSED
        return STARTING if now - self.begun_at <= SILENT_AFTER_US else FAILURE

    def _replica(self, who: InstanceId, now: int) -> dict[str, Any]:
        entry = self._instance(who, now)
        return {
            "fragment": who.fragment,
            "replica": who.replica,
            "shard": who.shard,
            "engine": self.plan.fragment(who.fragment).engine_of(who.replica),
            "site": self.layout.site_of_replica(who.replica),
            "state": (entry.get("state") or STARTING) if entry else self._absent(now),
            "since_ms": entry.get("since_ms") if entry else None,
            "alpha_x_ms": entry.get("alpha_x_ms") if entry else None,
            "missing": list(entry.get("missing", ())) if entry else [],
            "position": entry.get("position") if entry else None,
            "stalled": who in self.stalls.stalled,
            "claim_lost": who in self.claims.lost,
            "problem": self._problem(who, now),
        }

    def _problem(self, who: InstanceId, now: int) -> str | None:
        """Why the node of an instance ended lately."""
        text, at = self._problems.get(f"node.{self.record.name}.{who.replica}", (None, 0))
        return text if now - at <= PROBLEM_KEPT_US else None

    def _instance(self, who: InstanceId, now: int) -> ProcessStatus | None:
        node = self.newest(f"node.{self.record.name}.{who.replica}", now)
        entries = node["instances"] if node else ()
        name = (who.fragment, who.replica, who.shard)
        return next((entry for entry in entries if (entry["fragment"], entry["replica"], entry["shard"]) == name), None)

    def _job(self, replica: str, now: int) -> dict[str, Any]:
        """The figures of the Spark job that runs a replica's operators."""
        said = self.newest(f"spark.{self.record.name}.{replica}", now) or {}
        return {"replica": replica, "site": self.layout.site_of_replica(replica), **facts_of_job(said)}

    def _egress(self, site: str, now: int) -> dict[str, Any]:
        egress = self.newest(f"egress.{self.record.public}.{site}", now) or {}
        since_ms = egress.get("tentative", {}).get("since_ms")
        return {
            "site": site,
            "state": (egress.get("state") or STARTING) if egress else self._absent(now),
            "ready": bool(egress.get("ready")),
            "delay_ms": {**_NO_DELAYS, **egress.get("delay_ms", {})},
            "violations": egress.get("violations", 0),
            "tentative": {
                "outstanding": egress.get("tentative", {}).get("outstanding", 0),
                "since": moment(int(since_ms * 1_000)) if since_ms is not None else None,
                "cause": egress.get("tentative", {}).get("cause"),
            },
            "counts": {**_NO_COUNTS, **egress.get("counts", {})},
            "records_wait_for": egress.get("records_wait_for"),
        }

    def _input(self, stream: str, now: int) -> dict[str, Any]:
        source = self.newest(self.layout.source_role(stream), now) or {}
        ingest_ms = source.get("last_ingest_ms")
        return {
            "name": stream,
            "state": source.get("state") or _INPUT_STATES[self._absent(now)],
            "last_boundary": source.get("last_boundary"),
            "last_ingest_age_ms": max(now / 1_000 - ingest_ms, 0) if ingest_ms is not None else None,
            "rows": source.get("rows"),
            "dlq": source.get("dlq"),
            "dlq_per_minute": source.get("dlq_per_minute"),
            "last_refusal": source.get("last_refusal"),
            "waits_for": source.get("waits_for"),
            "waits_since_ms": source.get("waits_since_ms"),
            "lag_records": source.get("lag_records"),
            "lag_ms": source.get("lag_ms"),
            "clamped": source.get("clamped"),
            "ahead": source.get("ahead"),
            "coerced": source.get("coerced"),
            "idle_partitions": source.get("idle_partitions"),
            "spooled_bytes": source.get("spooled_bytes"),
        }

    def _resources(self, now: int) -> dict[str, Any]:
        """What the query's processes that are heard take together."""
        heard = [said for name in self._processes if (said := self.newest(name, now)) is not None]
        return {field: sum(said.get(field) or 0 for said in heard) for field in ("memory_bytes", "cores")}

    def _is_ready(self, best: ProcessStatus, replicas: Sequence[ProcessStatus]) -> bool:
        """A query is ready if it answers, even tentatively: one egress, and one replica of every shard, work."""
        shards = {(replica["fragment"], replica["shard"]) for replica in replicas}
        at_work = {(r["fragment"], r["shard"]) for r in replicas if _rank(r["state"]) < _rank(State.RECOVERING.value)}
        return bool(best["ready"]) and shards == at_work and not self.record.paused

    def _inputs_of(self, who: InstanceId) -> dict[str, object]:
        """The position of each input of an instance, from the statuses of its writers."""
        return {
            f"{edge.name}/{producer}": self._place_of(edge, producer)
            for edge in self.plan.fragment(who.fragment).edges
            for producer in range(edge.producers)
        }

    def _place_of(self, edge: Edge, producer: int) -> object:
        if edge.source:
            source = self._processes.get(self.layout.source_role(edge.operator), {})
            # Records that are only in the spool have not been written to a log.
            return source.get("last_boundary") if source.get("state") != "spooling" else None
        writers = [f for f in self.plan.fragments if edge.name in (output.name for output in f.outputs)]
        return max(
            (
                entry["position"]
                for fragment in writers
                for replica in fragment.replicas
                for entry in self._processes.get(f"node.{self.record.name}.{replica}", {}).get("instances", ())
                if (entry["fragment"], entry["shard"]) == (fragment.name, producer)
            ),
            default=None,
        )

    # The journal

    def _entries(self, effects: Iterable[claims.ClaimEffect | stalls.StallEffect], now: int) -> list[WatchEffect]:
        """The journal entries of these effects, and the trims, which are passed on, in their order."""
        entries: list[WatchEffect] = []
        for effect in effects:
            match effect:
                case Trim():
                    entries.append(effect)
                case claims.ClaimLoss(who, silent_us):
                    text = f"was silent for {silent_us / 1e6:.0f} s, longer than the retention, and has lost its claim"
                    entries.append(self._enter("claim", str(who), text, now, is_bad=True))
                case claims.ClaimReturn(who):
                    entries.append(self._enter("claim", str(who), "is heard again, and has a claim again", now))
                case stalls.Stall(who, since):
                    text = f"has made no progress for {(now - since) / 1e6:.0f} s, although all its inputs have"
                    entries.append(self._enter("progress", str(who), text, now, is_bad=True))
                case stalls.StallEnd(who):
                    entries.append(self._enter("progress", str(who), "makes progress again", now))
                case _:
                    assert_never(effect)
        return entries

    def _changes(self, now: int) -> list[WatchEffect]:
        """Changes of state of instances, egresses and inputs since the last tick, while they are expected to report."""
        if self._absent(now) != FAILURE:
            return []
        seen = {f"state {who}": self._look(who, now) for who in self.instances}
        seen |= {f"state egress.{site}": (str(self._egress(site, now)["state"]), "") for site in self.sites}
        seen |= {f"input {stream}": (str(self._input(stream, now)["state"]), "") for stream in self._streams}
        before, self._seen = self._seen, seen
        entries: list[WatchEffect] = []
        for name, (state, text) in seen.items():
            if before is not None and before.get(name, (state, ""))[0] != state:
                kind, _, who = name.partition(" ")
                is_bad = state in (FAILURE, "failed")
                entries.append(self._enter(kind, who, f"{before[name][0]} -> {state}{text}", now, is_bad=is_bad))
        return entries

    def _look(self, who: InstanceId, now: int) -> tuple[str, str]:
        replica = self._replica(who, now)
        return replica["state"], f", missing {', '.join(replica['missing'])}" if replica["missing"] else ""

    def _enter(self, kind: str, who: str, text: str, now: int, is_bad: bool = False) -> JournalEntry:
        return self.journal.enter(JournalEntry(now // 1_000, kind, who, text, is_bad))


def _instances_of(layout: Layout) -> list[InstanceId]:
    """Those of all replicas, without the egresses."""
    return [who for replica in layout.replicas for who in layout.instances(replica)]


def tentative_share(counts: Mapping[str, int]) -> float | None:
    """`deployment.status_fields.TENTATIVE_SHARE`. counts: what clients were given."""
    given = counts["stable"] + counts["tentative"]
    return counts["tentative"] / given if given else None


def _rank(state: str) -> int:
    """Rank of a state for clients; 0 is best."""
    return _BEST_FIRST.index(state) if state in _BEST_FIRST else len(_BEST_FIRST)
