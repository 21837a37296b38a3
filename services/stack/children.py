"""Which processes a query needs, with the commands that start them: the same on one machine and in containers."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

from boreal.query.spec import load_query
from deployment.layout import make_layout
from deployment.query_record import QueryRecord
from deployment.supervision import Child

CHANGED_LIVE = ("delay_threshold", "slo")
"""The fields of a query that running processes apply: they follow boreal.queries themselves."""

CHANGED_IN_TURN = ("reconcile", "policy", "replicas", "engine")
"""The fields of a query that may differ between replicas for a while: they change no stable tuple, and no source's log."""

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


def query_children(record: QueryRecord, sites: tuple[str, ...], own: Collection[str]) -> list[Child]:
    """The processes that a query needs at the sites `own`, of all `sites`; none while it is paused. UserError if this
    version of boreal does not accept the spec."""
    if record.paused:
        return []
    query = load_query(record.spec)
    layout = make_layout(query, sites)
    structure = _digest(record, (*CHANGED_LIVE, *CHANGED_IN_TURN))
    manner = _digest(record, CHANGED_LIVE) + (f"-{record.restarts}" if record.restarts else "")
    operators = _digest(record, (*CHANGED_LIVE, "reconcile", "policy", "replicas"))

    def child(kind: str, part: str, turn: str) -> Child:
        command = (sys.executable, "-m", f"services.{kind}", query.name, part)
        return Child(f"{kind}.{query.name}.{part}", kind, query.name, command, structure, turn)

    def spark(replica: str) -> Child:
        """It gets the mode with its orders, so that only a change of operators needs a restart."""
        command = (sys.executable, "-m", "spark_jobs", query.name, replica)
        return Child(f"spark.{query.name}.{replica}", "spark", query.name, command, operators)

    streams = sorted({edge.operator for edge in layout.plan.sources})
    here = [replica for replica in layout.replicas if layout.site_of_replica(replica) in own]
    return [
        *(child("source", stream, "") for stream in streams if layout.site_of_stream(stream) in own),
        *(child("node", replica, manner) for replica in here),
        *(spark(replica) for replica in here if layout.remote_instances(replica)),
        *(child("egress", site, manner) for site in layout.sites if site in own),
    ]


def _digest(record: QueryRecord, without: tuple[str, ...]) -> str:
    spec = {key: value for key, value in record.spec.items() if key not in without}
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
