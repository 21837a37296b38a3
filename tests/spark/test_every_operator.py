"""Every operator, with the functions of expressions, in the Python worker of a real Spark: it answers, byte for byte, as hosts
beside us do. `tests/spark/test_parity.py` gives more queries to a whole job, with Kafka; here the session is that of other
tests, and the orders come in a data frame."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bench.installing import install
from boreal.query.language import FUNCTIONS
from boreal.query.shapes import KINDS
from boreal.query.spec import Mode, Query, load_query
from deployment.layout import make_layout
from deployment.operator_hosts import orders_topic
from reconcile.parts import Parts
from services.kafka.clusters import Cluster
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.kafka.topics import TopicSpec, ensure
from services.stack.servers import KafkaServer, RedisServer
from simulation import exact
from simulation.own_operators import NEWEST, OPERATORS, TOTALS
from simulation.queries import SCHEMA
from spark_jobs.progress import ProgressAccumulator
from spark_jobs.worker import ANSWERS, ReplicaTask, obey
from tests.spark.jobs import ROOT, WIDE, Script, environment_of

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

SELECTED = (
    "date_trunc('day', t, 'Europe/Berlin')", "extract(dow from t at time zone 'Asia/Kathmandu')", "to_timestamp(n)",
    "to_timestamp(k, 'k%d')", "trim(k, 'k')", "ltrim(k, 'k')", "rtrim(k, '0123')", "replace(k, 'k', 'q')", "position('1' in k)",
    "split_part(k, 'k', 2)", "regexp_matches(k, '[0-4]')", "regexp_like(k, '5')", "regexp_extract(k, '[0-9]+')",
    "regexp_replace(k, '([0-9])', '<\\1>', 'g')", "if(b, n, 0)", "mod(n, 3)", "sign(v)", "log(v)", "log(2, v)", "ln(v)",
    "sqrt(v)", "exp(v)", "power(v, 2)", "round(v, 1)", "floor(v)", "ceil(v)", "abs(n)", "coalesce(n, 0)", "nullif(n, 3)",
    "greatest(v, n)", "least(v, n)", "concat(k, k)", "length(k)", "lower(k)", "upper(k)", "substring(k, 1, 1)",
    "cast(v as int)", "case when v > 9 then k else 'none' end", "cast(t at time zone 'America/New_York' as date)",
    *(text for column in exact.SELECTED.values() for text in column),
)  # fmt: skip
COMPUTED = (
    "count(*)", "count_if(v > 5)", "count(distinct k)", "sum(n)", "sum(v) filter (where b)", "avg(v)", "stddev(v)",
    "stddev_pop(n)", "min(t)", "max(k)", "first(v)", "last(b)", "approx_count_distinct(v)", "approx_quantile(v, 0.5)",
    *exact.COMPUTED.values(),
)  # fmt: skip


def every_operator(name: str) -> Query:
    """A fragment for each operator; what they make meets in a union, beside its node, so that all of it is needed."""
    streams = {stream: {"time": "time", "schema": {"time": "int", **SCHEMA, **exact.SCHEMA}} for stream in ("a", "b")}
    compute = {f"c{place}": text for place, text in enumerate(COMPUTED)}
    made: dict[str, dict[str, Any]] = {
        "united": {"union": ["a", "b"]},
        "shaped": {"map": "a", "select": {f"c{place}": text for place, text in enumerate(SELECTED)}},
        "chosen": {"filter": "a", "where": " or ".join(f"({text})" for text in exact.CONDITIONS)},
        "tumbling": {"aggregate": "a", "window": {"tumbling": "1s"}, "by": ["d"], "compute": compute},
        "sliding": {"aggregate": "a", "window": {"sliding": "2s", "every": "1s"}, "by": ["a"], "compute": compute},
        "sessions": {"aggregate": "a", "window": {"session": "300ms"}, "by": ["k"], "compute": compute},
        "joined": {"join": ["a", "b"], "on": ["d"], "within": "1s", "how": "left"},
        "found": {"lookup": ["a", "b"], "on": ["a"], "within": "2s", "how": "left", "deleted": "b"},
        "different": {"distinct": "a", "on": ["a", "d"], "window": {"tumbling": "2s"}},
        "new": {"deduplicate": "a", "on": ["w"], "within": "1s"},
        "highest": {"top": "a", "k": 2, "order_by": "d desc, v", "window": {"tumbling": "1s"}, "by": ["k"]},
        "totals": {"python": "a", "operator": TOTALS, "with": {"by": ["k", "d"], "window": "1s"}},
        "newest": {"python": "a", "operator": NEWEST, "with": {"by": ["a"], "window": "1s"}},
    }
    ends = {f"end_of_{of}": {"aggregate": of, "window": {"tumbling": "1s"}, "compute": {"n": "count(*)"}} for of in made}
    fragments: dict[str, Any] = {f"of_{of}": {"operators": [of]} for of in made}
    fragments["together"] = {"operators": [*ends, "all"], "engine": "native"}
    operators = {**made, **ends, "all": {"union": list(ends)}}
    return load_query(
        {"name": name, "streams": streams, "operators": operators, "output": "all", "fragments": fragments, "engine": "spark"}
    )


def test_they_are_all_here() -> None:
    kinds = {spec.kind for spec in every_operator("q").operators.values()}
    assert kinds == set(KINDS)
    assert [name for name in FUNCTIONS if not any(f"{name}(" in text for text in SELECTED)] == []


@pytest.mark.soak
def test_their_bytes_are_the_same(
    kafka: KafkaServer, session: SparkSession, tmp_path: Path, fresh_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = every_operator(fresh_name)
    layout = make_layout(query, ("a",))
    instances = layout.remote_instances("r0")
    scripts = [Script(layout.plan.fragment(who.fragment), place) for place, who in enumerate(instances)]
    for mode in Mode:
        for script in scripts:
            script.begin(mode)
            script.go_on(12, rows=30)
    orders = [
        (partition, offset, order) for partition, script in enumerate(scripts) for offset, order in enumerate(script.orders)
    ]
    operators = {name: f"simulation.own_operators:{kind.__name__}" for name, kind in OPERATORS.items()}
    installed = install(tmp_path / "installed", "simulated-operators", "1.0", operators)
    context = session.sparkContext
    with RedisServer(tmp_path / "redis") as redis:
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}, redis=RedisSettings(url=redis.url))
        # A new host looks for earlier orders there.
        ensure(Cluster(settings.home, settings, "test"), [TopicSpec(orders_topic(fresh_name, "r0"), len(instances), WIDE)])
        environment = {**environment_of(settings), "PYTHONPATH": os.pathsep.join(map(str, (ROOT, installed)))}
        for name, value in environment.items():
            monkeypatch.setitem(context.environment, name, value)
        task = ReplicaTask(json.dumps(query.dump()), "r0", ("a",), fresh_name, query.name, "test")
        progress = context.accumulator({}, ProgressAccumulator[int]())
        given = session.createDataFrame(orders, "partition int, offset bigint, value binary").coalesce(1)
        answered = given.mapInArrow(partial(obey, task, progress), ANSWERS).collect()
    for partition, script in enumerate(scripts):
        parts = Parts()
        answers = [parts.take(bytes(row.value)) for row in answered if row.partition == partition]
        assert [answer for answer in answers if answer is not None] == script.answers, instances[partition]
