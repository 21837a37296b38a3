"""What the fields of statuses mean: the data of docs/settings.md, and the list that tests compare real statuses with.

An entry is a text, or a text and the fields of the part. The part may be a list: each of its elements has these fields. A
name in capitals stands for any name. Times are milliseconds unless the name says otherwise; `..._ms` that say when are
milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, "str | tuple[str, Fields]"]

CLOCK_WARNING: Fields = {
    "process": "The process.",
    "skew_ms": "How far its clock is off.",
    "text": "What follows from it, and what to do.",
}
JOURNAL_ENTRY: Fields = {
    "at_ms": "When.",
    "kind": "What changed: `claim`, `progress`, `state`, `input` or `checkpoint`; where the query is embedded, also `fault`.",
    "who": "The instance, egress or stream.",
    "text": "What happened.",
    "is_bad": "Whether somebody should look.",
}
DELAYS: Fields = {"p50": "The median.", "p99": "The 99th percentile.", "max": "The longest."}
COUNTS: Fields = {"stable": "Stable rows.", "tentative": "Tentative rows.", "undone": "Tentative rows that were revoked."}
TENTATIVE: Fields = {
    "outstanding": "Tentative rows that are not revoked.",
    "since": "When the first of them was given.",
    "cause": "Why they are tentative: the failure, or `early`.",
}
TENTATIVE_SHARE = "The share of tentative rows, from 0 to 1, in all that clients of the best egress were given; null before."
RESOURCES: Fields = {
    "memory_bytes": "Memory.",
    "cores": "Processor time over time: 1 is a whole core.",
}
SHARED_RESOURCES = (
    "What its processes take; in Spark on this machine, the JVM and its Python workers too. Of a process that many roles share "
    "(`--workers`) each role counts an equal part, whatever it takes itself. Null in an embedded installation, which is one "
    "process"
)
FROZEN = "Its processes that a signal has stopped (SIGSTOP): they run, and do nothing."
CHANGES = "Its last changes of state since the process began, the newest last: the state, and when it was entered."
STATES = "`STABLE`, `UP_FAILURE`, `STABILIZATION` or `RECOVERING`, as protocol.md defines them"

# What a Spark job says of itself

JOB: Fields = {
    "ready": "Whether the job is warm.",
    "start_s": ("How long its start took, in seconds.", {"PART": "Of each part of the start."}),
    "batch_ms": "How long the last batch took.",
    "batch_parts_ms": ("What that consists of, as Spark says.", {"PART": "Of each part of the batch."}),
    "batch_orders": "Orders in the last batch.",
    "orders_per_s": "Orders a second.",
    "rows_per_s": "Rows a second that orders brought, of all shards, over the last ten seconds.",
    "shards": (
        "For each instance that was given an order:",
        {
            "fragment": "Its fragment.",
            "shard": "Its shard.",
            "rows": "Rows since the job began, without those of orders that were given again.",
            "state_bytes": "Memory of its state, estimated.",
            "versions_bytes": "Memory beside the state, estimated: the copy that a rollback returns to, and overlays.",
            "rebuilds": "How often its state was made from a snapshot and orders since the job began, the start included.",
            "last_rebuild_s": "How long the last rebuild took, in seconds.",
            "last_rebuild_cause": "Why: `new worker` (the job began, or a worker or its executor was lost), `orders given "
            "again` (Spark repeated a batch), `orders missed` (another worker obeyed those between), `batch broken off`.",
            "last_rebuild_orders": "How many orders were obeyed again for it.",
        },
    ),
    "rss_bytes": (
        "Memory of processes:",
        {
            "driver": "Of the job's own process.",
            "jvm": "Of its JVM.",
            "workers": "Of all Python workers that hold the state of an instance.",
        },
    ),
}

# What the monitor says of a query

INPUT: Fields = {
    "name": "The stream.",
    "state": "`live`; `idle`: no rows come, which is no failure; `spooling`: rows wait on the source's disk for Kafka; "
    "`failed`; `starting`; `paused`.",
    "last_boundary": "The boundary of the stream, or `end`; null before the first.",
    "last_ingest_age_ms": "How long ago its source logged the last row.",
    "rows": "Rows that its source has logged since it started.",
    "dlq": "Records that its source has refused since it started: the dead letters.",
    "dlq_per_minute": "How many of them there were within the last minute.",
    "last_refusal": "Why it refused the last of them; null if it has refused none since it started.",
    "waits_for": "What its records wait for, such as a schema registry that does not answer; null if for nothing.",
    "waits_since_ms": "Since when they wait; null if they do not.",
    "lag_records": "Records of its topic that it has not taken yet, by what it last knew of the topic's end; null before.",
    "lag_ms": "For how long there have been such records; 0 if there are none.",
    "clamped": "Late rows that it has put at the boundary since it started.",
    "ahead": "Rows that it has refused since it started because their time was too far ahead.",
    "coerced": "Values that it has converted from another JSON type since it started, such as a number in quotes; 0 where the "
    "stream says `types: refuse`.",
    "idle_partitions": "Partitions that hold the stream back no longer, since they have brought nothing for `idle`.",
    "spooled_bytes": "What waits on the source's disk for Kafka.",
}
REPLICA: Fields = {
    "fragment": "Its fragment.",
    "replica": "Its replica.",
    "shard": "Its shard.",
    "engine": "`native` or `spark`.",
    "site": "The site of the replica.",
    "state": f"{STATES}; `STARTING` before it is heard, `FAILURE` when it is silent, `PAUSED` while the query is.",
    "since_ms": "When it entered the state.",
    "alpha_x_ms": "How long it may hold a bucket back for missing input.",
    "missing": "The inputs that are missing.",
    "position": "Up to which event time its stable input is processed: microseconds since 1970.",
    "stalled": "Whether it stands still while all its inputs go on.",
    "problem": "Why its process ended lately, such as an operator that raised an error, or whose package is not installed "
    "there; null otherwise. It is kept until the "
    "process has run for half a minute.",
    "claim_lost": "Whether it was silent for longer than `tuning.retention`, so that its input may be trimmed.",
}
RECORDS_WAIT_FOR = (
    "What the rows of `q.records` wait for, such as a schema registry that does not answer, or refuses the schema; null if for "
    "nothing."
)
EGRESS_OF_QUERY: Fields = {
    "site": "The site of the egress.",
    "state": "As of a replica.",
    "ready": "Whether it gives results.",
    "delay_ms": ("The delay of new rows lately; null where there was none.", DELAYS),
    "violations": "New rows that came later than X after their ingest.",
    "tentative": ("What clients hold that may be revoked:", TENTATIVE),
    "counts": ("What clients were given:", COUNTS),
    "records_wait_for": RECORDS_WAIT_FOR,
}
BUDGET: Fields = {
    "share": "The share that was as it should be, from 0 to 1; null where there is none yet.",
    "budget_left": "How much is left of what may be otherwise within the window: 1 is all, 0 none; below 0 it is overspent.",
    "burn_1h": "How fast the budget was spent over the last hour: 1 spends all of it within the window.",
    "burn_6h": "The same, over the last six hours.",
}
SLO: Fields = {
    "objective": "The objective, in percent.",
    "window_ms": "Over how long, up to now.",
    "since_ms": "From when on it is known what clients were given, within the window.",
    "results": (
        "New rows:",
        {"on_time": "Those that came within X of their ingest.", "late": "The others.", **BUDGET},
    ),
    "time": (
        "Time, of which the budget is a part of the whole window:",
        {"tentative_ms": "For how long clients held tentative rows.", **BUDGET},
    ),
}
EVOLUTION: Fields = {
    "state": "`claiming`: it is looked up what the version in charge keeps (`--from state`); `building`: it reads what is "
    "kept, until it has caught up; `taking_over`; `taken_over`: the version before runs on, unread; `rolling_back`, "
    "`rolled_back`; `leaving`: it is being deleted.",
    "version": "The number of the version beside the one whose results are given.",
    "from": "From where that reads: `earliest`, or the time from which on records were written to its streams' topics; "
    "`state`: what the version before keeps.",
    "at": "While it takes over: the event time from which on its results are given.",
    "waits_for": "What the next step waits for; null if for nothing.",
}
QUERY: Fields = {
    "v": "The version of this shape.",
    "process": "`query:NAME`, the key of the record.",
    "pid": "The process id of the monitor.",
    "kind": "`query`.",
    "query": "The name of the query.",
    "name": "The name of the query.",
    "at_ms": "When this was said.",
    "revision": "Grows with each change of the query.",
    "version": "The number of the version whose results are given.",
    "evolution": ("How a change to another version gets on; null where there is one version only:", EVOLUTION),
    "paused": "Whether the query is paused.",
    "ready": "Whether it answers: an egress is ready, and a replica of each shard is at work.",
    "state": "The state of the best egress.",
    "x_ms": "X, the delay threshold.",
    "alpha_x_ms": "The least of its replicas'.",
    "delay_ms": ("The delay of new rows lately, at the best egress; null where there was none.", DELAYS),
    "violations": "New rows that came later than X after their ingest, at all egresses.",
    "slo": ("For a query with an objective; null for any other:", SLO),
    "inputs": ("For each stream:", INPUT),
    "replicas": ("For each instance, that is, each shard of each replica of each fragment:", REPLICA),
    "jobs": (
        "For each replica with operators in Spark, all null while it is not heard:",
        {"replica": "The replica.", "site": "Its site.", **JOB},
    ),
    "egresses": ("For each site:", EGRESS_OF_QUERY),
    "tentative": ("What clients of the best egress hold that may be revoked:", TENTATIVE),
    "tentative_share": TENTATIVE_SHARE,
    "resources": (f"{SHARED_RESOURCES}:", RESOURCES),
    "counts": ("What clients of the best egress were given:", COUNTS),
    "claims": (
        "What readers need of the logs:",
        {
            "lost": "The readers that were silent for longer than `tuning.retention`.",
            "trimmed_before": ("How far each log may be trimmed.", {"LOG": "The first id that a reader still needs."}),
        },
    ),
    "stalled": "The instances that stand still while all their inputs go on.",
    "frozen": FROZEN,
    "clock": ("For each process whose clock takes more than a quarter of what X leaves:", CLOCK_WARNING),
    "notes": "What the planner says of the query.",
    "journal": ("What happened lately, in the order of time:", JOURNAL_ENTRY),
    "seen": "For the next incarnation of the monitor: the last state that is known of each instance, egress and input.",
}

# What `boreal status --json` prints

SOURCE_OF_STACK: Fields = {
    field: INPUT[field]
    for field in (
        *("state", "last_boundary", "rows", "lag_records", "lag_ms", "dlq", "dlq_per_minute", "last_refusal"),
        *("waits_for", "waits_since_ms"),
        *("ahead", "clamped", "coerced", "spooled_bytes", "idle_partitions"),
    )
}
ANSWERS_OF_STACK: Fields = {
    **{field: QUERY[field] for field in ("state", "x_ms", "delay_ms", "violations", "slo", "tentative_share", "resources")},
    "frozen": FROZEN,
    "records_wait_for": RECORDS_WAIT_FOR,
}
PROCESS_OF_STACK: Fields = {
    "name": "Its name: the kind, and what it serves.",
    "kind": "`source`, `node`, `egress`, `spark`, `monitor`, `api`, `kafka` or `redis`.",
    "query": "The query that it serves; null for what serves all.",
    "pid": "Its process id; null while it does not run, and of a role in a worker that has joined the site.",
    "worker": "The worker that runs it, of those that have joined the site; null where none does.",
    "state": "`running`: and ready; `frozen`: stopped by a signal, and does nothing; `starting`; `recovering`: it was ready, "
    "and will be again; `waiting`: for the next start, after an end; `stopping`, `killed`: asked to end, and made to.",
    "restarts": "How often it was started again.",
}
WORKER_OF_STACK: Fields = {
    "site": "The site that it has joined.",
    "name": "Its name.",
    "host": "The name of its host.",
    "program": "The version of boreal that it runs.",
    "roles": "How many roles it runs.",
    "problem": "Why it gets no roles, or does not obey the newest record; null if neither.",
}
STACK: Fields = {
    "ready": "Whether all that should run is ready.",
    "kafka": ("The brokers:", {"SITE": "The address of each site's."}),
    "redis": "The address of Redis.",
    "api": "The address of the REST API; null without one.",
    "token": "The token of a local stack's API; null elsewhere.",
    "processes": ("For each process:", PROCESS_OF_STACK),
    "queries": "The names of all queries.",
    "problems": ("Queries that do not run in full:", {"QUERY": "Why."}),
    "sources": ("How far sources are, if there are any:", {"QUERY.STREAM": ("For each stream:", SOURCE_OF_STACK)}),
    "answers": ("How queries answer, if there are any:", {"QUERY": ("For each query:", ANSWERS_OF_STACK)}),
    "jobs": ("How Spark jobs get on, if there are any:", {"JOB": ("For each job:", JOB)}),
    "workers": ("The workers that have joined a site, if there are any:", WORKER_OF_STACK),
    "clock": ("Processes whose clock takes more than a quarter of what X leaves, if there are any:", CLOCK_WARNING),
}

# What `boreal query show --json` prints

STREAM_SHOWN: Fields = {
    field: INPUT[field]
    for field in (
        *("state", "rows", "lag_records", "lag_ms", "dlq", "dlq_per_minute", "last_refusal"),
        *("coerced", "waits_for", "waits_since_ms"),
    )
}
SHOWN_QUERY: Fields = {
    "name": "The name of the query.",
    "revision": "Grows with each change of the query.",
    "version": "The number of the version whose results are given.",
    "paused": "Whether the query is paused.",
    "delay_threshold": "X, as the query file writes it.",
    "reconcile": "How replicas return to the state before a failure.",
    "policy": "FAILURE/STABILIZATION.",
    "replicas": "The number of replicas.",
    "engine": "The engine, or a list with one for each replica.",
    "live": "Whether all that it needs runs and is ready; tentative answers count.",
    "states": ("The state of each instance:", {"FRAGMENT.REPLICA.SHARD": f"{STATES}."}),
    "missing_inputs": "The inputs that are missing somewhere.",
    "least_x_ms": "The smallest X that the query could keep, by what was measured lately.",
    "waits_for": "The processes that are not ready yet.",
    "problem": "Why the query cannot run; null if it can.",
    "streams": ("What is known of its streams:", {"STREAM": ("Of each:", STREAM_SHOWN)}),
    **ANSWERS_OF_STACK,
    "evolution": ("How a change to another version gets on; null where there is one version only:", EVOLUTION),
    "spec": "The query, in the shape of the file.",
}

# What processes say of themselves

PROCESS: Fields = {
    "v": "The version of this shape.",
    "process": "The name of the process, the key of the record.",
    "kind": "The first part of the name.",
    "query": "The query that it serves; null for what serves all.",
    "pid": "Its process id.",
    "at_ms": "When this was said.",
    "ready": "Whether it does its work.",
    "memory_bytes": "Its memory.",
    "cores": "How much of a core it has taken lately: 1 is all of it.",
    "clock_offset_ms": "How far the machine's wall clock is ahead of the home site's; null before the first answer.",
    "clock_uncertainty_ms": "By how much that may be wrong.",
    "clock_error_ms": "How far the clock of the process is still ahead of the home site's.",
}
"""What every process says; the others follow it."""

SOURCE: Fields = {
    "stream": "The stream.",
    **{field: INPUT[field] for field in ("state", "last_boundary", "rows", "dlq", "dlq_per_minute", "last_refusal")},
    **{field: INPUT[field] for field in ("waits_for", "waits_since_ms")},
    **{field: INPUT[field] for field in ("lag_records", "lag_ms", "clamped", "ahead", "coerced", "idle_partitions")},
    "last_ingest_ms": "When it logged the last row.",
    "spooled_bytes": INPUT["spooled_bytes"],
    "spool_full": "Whether its disk space for rows over HTTP is used up.",
    "lost_records": "Records that the topic had deleted before they were read.",
    "positions": ("How far it has read:", {"PARTITION": "The offset of the next record of each partition."}),
    "readers": "The queries that read it, which have its dead letters.",
    "holds": "The claims of queries that are about to read it, for which it keeps all rows that it has.",
}
NODE: Fields = {
    "site": "The site of the replica.",
    "problem": "Why the process ends: the operator and its error, if it is one of a package, or why the query cannot run in "
    "it, such as a package that is not installed there; null while it runs.",
    "instances": (
        "For each shard of each fragment:",
        {
            "fragment": "Its fragment.",
            "replica": "Its replica.",
            "shard": "Its shard.",
            "engine": "`native` or `spark`.",
            "state": f"{STATES}; null before the first.",
            "since_ms": "When it entered the state.",
            "changes": CHANGES,
            "x_ms": "The X that it keeps to.",
            "alpha_x_ms": "How long it may hold a bucket back for missing input.",
            "least_x_ms": "The smallest X that leaves time to hold a bucket back, by what was measured lately.",
            "engine_ms": "What an order to the operators takes at worst.",
            "path_after_ms": "How long rows take from here to clients at worst, as its readers have told it.",
            "missing": "The inputs that are missing.",
            "position": "Up to which event time its stable input is processed: microseconds since 1970.",
            "held_rows": "Rows of its inputs in its memory: to be processed yet, or kept for a correction.",
            "checkpoint_bytes": "How large the last copy of its state was; 0 before the first.",
            "inputs": (
                "For each partition that it reads:",
                {
                    "name": "The stream and the partition of its writer.",
                    "boundary": "Its stable boundary: microseconds since 1970.",
                    "silent": "Whether nothing is heard of it.",
                    "failed": "Whether it is silent or tentative, or its writer is not `STABLE`.",
                    "read_from": "The replica whose log is read; null for a source's.",
                    "skew_ms": "How far the writer's clock was seen to be ahead.",
                    "hop_ms": "How long boundaries took from the writer to here lately, at worst.",
                    "silent_for_ms": "How long ago it was last heard.",
                },
            ),
            "reconciliations": "How many corrections it has made.",
            "last_reconciliation_s": "How long the last one took, in seconds.",
            "unconfirmed_frames": "Frames that Kafka has not confirmed yet.",
        },
    ),
}
EGRESS: Fields = {
    "site": "Its site.",
    "version": "The number of the version of the query whose results it gives.",
    "through_us": "The event time that its stable results have reached, in microseconds; null before the first boundary.",
    "takeover": (
        "The change to another version that it prepares; null without one:",
        {
            "to": "The other version.",
            "at_us": "The event time from which on the other version's results are given.",
            "state": "`promised`: nothing of this version passes that time; `missed`: something has.",
        },
    ),
    "state": f"{STATES}; null before the first.",
    "since_ms": "When it entered the state.",
    "changes": CHANGES,
    "reads": ("Which replica's log is read:", {"INPUT": "Of each partition of the output."}),
    "x_ms": "The X that it keeps to.",
    "alpha_x_ms": "How long it may hold a bucket back for missing input.",
    "skew_ms": "How far the clocks of what it reads were seen to be ahead.",
    "counts": ("What clients were given:", COUNTS),
    "delay_ms": ("The delay of new rows lately; null where there was none.", DELAYS),
    "new_rows": "New rows since the process began, whose delays count.",
    "violations": "New rows that came later than X after their ingest.",
    "tentative": (
        "What clients hold that may be revoked:",
        {
            "outstanding": TENTATIVE["outstanding"],
            "since_ms": TENTATIVE["since"],
            "cause": TENTATIVE["cause"],
        },
    ),
    "missing": "The inputs that are missing.",
    "lost_rows": "Stable rows that were gone from the logs before they could be given.",
    "seq": "The number of the last record on `q.out`.",
    "epoch": "How often tentative rows were revoked.",
    "next_id": (
        "The id of the next stable row:",
        {
            "out": "On `q.out`.",
            "stable": "On `q.stable`; null at sites other than the home site.",
            "records": "On `q.records`; null also where the query has none.",
        },
    ),
    "records_wait_for": RECORDS_WAIT_FOR,
    "unconfirmed_frames": "Frames whose records Kafka has not confirmed yet.",
}
API: Fields = {
    "tokens": (
        "Which tokens there are, without what they are:",
        {"id": "Its id.", "name": "Its name.", "roles": "What it may.", "created_ms": "When it was made."},
    ),
    "jobs": (
        "The jobs that are not over, or were not ten minutes ago:",
        {
            "id": "Its id.",
            "kind": "What it is, such as `comparison`.",
            "query": "The query that it is about.",
            "by": "Who has asked for it.",
            "created_ms": "When that was.",
            "state": "`queued`, `running`, `done`, `failed` or `cancelled`.",
            "started_ms": "When its process was started; null before.",
            "ended_ms": "When it was over; null before.",
            "attempts": "How often its process was started.",
            "problem": "Why it failed; else null.",
        },
    ),
    "replays": (
        "The last replays of dead letters since the process began, as events:",
        {
            "v": "The version of this shape.",
            "at_ms": "When.",
            "kind": "`replayed`.",
            "query": "The query.",
            "by": "Who has asked for it.",
            "failure": "Null.",
            "facts": (
                "What was done:",
                {
                    "id": "Its id.",
                    "stream": "Letters of this stream were meant; null: of all.",
                    "reason": "Those whose reason has this text.",
                    "since_ms": "Those since then; null: all.",
                    "replayed": "How many records were put back.",
                    "left": ("How many letters were left:", {"REASON": "By the reason."}),
                },
            ),
        },
    ),
}
SPARK: Fields = {"site": "The site of the replica.", "replica": "The replica.", **JOB}
MONITOR: Fields = {
    "queries": "The queries that it watches.",
    "redis": "`reachable` or `out of reach`.",
    "trimmed_before": ("How far logs may be trimmed:", {"QUERY": ("Of each query:", {"LOG": "The first id that is needed."})}),
}
WORKER: Fields = {
    **{field: WORKER_OF_STACK[field] for field in ("site", "name", "host", "program", "problem")},
    "incarnation": "Its process: no other has the same.",
    "machine": "Its machine: containers on one kernel have the same.",
    "number": "The number of the placement record that it obeys; 0 before the first.",
    "roles": (
        "What it runs:",
        {
            "ROLE": (
                "For each role:",
                {
                    "start": "The number of the record with which it was started.",
                    "ready": "Whether it is ready.",
                    "code": "Its exit code, if it has ended by itself and was not started again; null while it runs.",
                },
            )
        },
    ),
    "leaves": "Whether it ends, and has no role any more.",
}
SUPERVISOR: Fields = {
    "faults": (
        "The faults on purpose that are active, or were within the last minute:",
        {
            "id": "Its id.",
            "fault": "The fault, as it was asked for.",
            "query": "Its query.",
            "targets": "The processes that it concerns.",
            "by": "Who asked for it.",
            "begun_ms": "When it was begun.",
            "ends_at_ms": "When it is to be undone.",
            "ended_ms": "When it was undone; null before.",
        },
    ),
    "processes": (
        "For each process that it runs:",
        {**PROCESS_OF_STACK, "created": "When it was made, in seconds since the machine began."},
    ),
    "queries": (
        "For each query, null before they are known:",
        {
            "QUERY": (
                "For each:",
                {
                    "revision": "The revision that its processes run.",
                    "paused": "Whether it is paused.",
                    "ready": "Whether all of its processes here are ready.",
                    "problem": "Why it cannot run, or a role of it runs in no worker; null if neither.",
                },
            )
        },
    ),
}

PROCESSES: Mapping[str, Fields] = {
    "source": SOURCE,
    "node": NODE,
    "egress": EGRESS,
    "spark": SPARK,
    "monitor": MONITOR,
    "supervisor": SUPERVISOR,
    "worker": WORKER,
    "api": API,
}
"""By the kind of the process: what it says beside PROCESS."""


def shown_process(said: Mapping[str, Any]) -> dict[str, Any]:
    """A process as `boreal status` shows it, of what its supervisor says."""
    return {field: said.get(field) for field in PROCESS_OF_STACK}


def shown_worker(said: Mapping[str, Any]) -> dict[str, Any]:
    """A worker as `boreal status` shows it, of its status."""
    return {**{field: said[field] for field in WORKER_OF_STACK}, "roles": len(said["roles"])}


def shown_stream(said: Mapping[str, Any]) -> dict[str, Any]:
    """A stream as `boreal query show` shows it, of its status."""
    return {field: said.get(field) for field in STREAM_SHOWN}


def answers_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """How a query answers, as `boreal status` and `boreal query show` have it: the fields of ANSWERS_OF_STACK. said: the status
    of the query; empty if it is not known."""
    waits = (str(why) for egress in said.get("egresses", ()) if (why := egress.get("records_wait_for")))
    return {**{field: said.get(field) for field in ANSWERS_OF_STACK}, "records_wait_for": next(waits, None)}
