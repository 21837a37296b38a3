"""Which processes a query needs, with the commands that start them: the same on one machine and in containers."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from deployment.joined_sources import SourceIndex
from deployment.layout import layout_of
from deployment.query_record import CHANGED_IN_TURN, CHANGED_LIVE, TUNING_OF_SOURCES, QueryRecord, without_intake
from deployment.supervision import Child


def python_environment() -> dict[str, str]:
    """Variables with which a Python process finds the packages that this one runs, and never a folder of the same name in the
    current directory: an empty entry of PYTHONPATH means that directory too."""
    root = str(Path(__file__).resolve().parents[2])
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", root)]
    paths = others if root == sysconfig.get_path("purelib") else [root, *others]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}


def api_child(port: int, allow_chaos: bool) -> Child:
    """The API of a local stack, at this port."""
    chaos = ("--allow-chaos",) if allow_chaos else ()
    return Child("api", "api", None, (sys.executable, "-m", "api", "--port", str(port), *chaos))


MONITOR = Child("monitor", "monitor", None, (sys.executable, "-m", "services.monitor"))


def query_children(
    record: QueryRecord, sites: tuple[str, ...], own: Collection[str], sources: SourceIndex | None = None
) -> list[Child]:
    """The processes that a query needs at the sites `own`, of all `sites`; none while it is paused. Those of a version that
    runs beside the one in charge come last. sources: of all queries, which may share some: these then have the shortest X of
    all; None: this query shares none. UserError if this version of boreal does not accept the spec."""
    sources = sources or SourceIndex([record])
    beside = [] if record.paused else [run for run in record.runs()[1:] if run.is_placed]
    last = [child for run in beside for child in _version_children(run, sites, own, sources)]
    # Versions may share their sources.
    return list({child.name: child for child in [*children_in_charge(record, sites, own, sources), *last]}.values())


def with_sources(children: Iterable[Child], sources: SourceIndex) -> list[Child]:
    """The processes of a query that has not changed itself, after others have that may share its sources. sources: of all
    queries."""
    return [_source_as_now(child, sources) if child.kind == "source" else child for child in children]


def children_in_charge(
    record: QueryRecord, sites: tuple[str, ...], own: Collection[str], sources: SourceIndex | None = None
) -> list[Child]:
    """As `query_children`, without those of a version that runs beside the one in charge: what clients are given depends on
    these."""
    charge = record.runs()[0]
    if record.paused or not charge.is_placed:
        return []
    versions = _version_children(charge, sites, own, sources or SourceIndex([record]))
    structure, manner = _digest(without_intake_of(charge.spec), (*CHANGED_LIVE, *CHANGED_IN_TURN)), _manner(charge)
    egresses = [
        Child(
            f"egress.{record.name}.{site}",
            "egress",
            record.name,
            (sys.executable, "-m", "services.egress", record.name, site),
            structure,
            manner,
            version=record.version,
            record=record,
            site=site,
        )
        for site in sites
        if site in own
    ]
    return [*versions, *egresses]


def _version_children(
    record: QueryRecord, sites: tuple[str, ...], own: Collection[str], sources: SourceIndex
) -> list[Child]:
    """The processes of one version of a query. record: the version's. sources: of all queries that may read its own."""
    layout = layout_of(record, sites)
    spec = without_intake_of(record.spec)
    structure, manner = _digest(spec, (*CHANGED_LIVE, *CHANGED_IN_TURN)), _manner(record)
    operators = _digest(spec, (*CHANGED_LIVE, "reconcile", "policy", "replicas"))
    streams = sorted({edge.operator for edge in layout.plan.sources})

    def source(stream: str) -> Child:
        by = sources.record_of(layout.sources_of(stream), stream)
        assert by is not None, "this version reads its log"
        return _source(layout.source_role(stream), by, stream, layout.site_of_stream(stream))

    def node(replica: str) -> Child:
        command = (sys.executable, "-m", "services.node", record.name, replica)
        name = f"node.{record.name}.{replica}"
        site = layout.site_of_replica(replica)
        return Child(name, "node", record.name, command, structure, manner, tuple(streams), record, site=site)

    def spark(replica: str) -> Child:
        """It gets the mode with its orders, so that only a change of operators needs a restart."""
        command = (sys.executable, "-m", "spark_jobs", record.name, replica)
        site = layout.site_of_replica(replica)
        return Child(f"spark.{record.name}.{replica}", "spark", record.name, command, operators, record=record, site=site)

    here = [replica for replica in layout.replicas if layout.site_of_replica(replica) in own]
    return [
        *(source(stream) for stream in streams if layout.site_of_stream(stream) in own),
        *(node(replica) for replica in here),
        *(spark(replica) for replica in here if layout.remote_instances(replica)),
    ]


def _source(role: str, by: QueryRecord, stream: str, site: str) -> Child:
    command = (sys.executable, "-m", "services.source", by.name, stream)
    return Child(role, "source", by.name, command, _taken_by(by.spec, stream), record=by, site=site)


def _source_as_now(child: Child, sources: SourceIndex) -> Child:
    *_, name, stream = child.command
    by = sources.record_of(name, stream)
    # Nobody reads it where a change that cannot run has left the query's processes as they were.
    return child if by is None or by == child.record else _source(child.name, by, stream, child.site)


def without_intake_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A specification without what only its sources read."""
    return {**spec, "streams": without_intake(spec["streams"])}


def _manner(record: QueryRecord) -> str:
    """Identifies what a version's processes take up in turn."""
    return _digest(without_intake_of(record.spec), CHANGED_LIVE) + (f"-{record.restarts}" if record.restarts else "")


def _taken_by(spec: Mapping[str, Any], stream: str) -> str:
    """Identifies what a stream's source reads of a specification. All that share it have the same: none restarts it."""
    tuning = {field: spec["tuning"].get(field) for field in TUNING_OF_SOURCES}
    return _digest({"stream": spec["streams"][stream], "tuning": tuning}, ())


def _digest(spec: Mapping[str, Any], without: tuple[str, ...]) -> str:
    kept = {key: value for key, value in spec.items() if key not in without}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
