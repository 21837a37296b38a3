"""Random queries of the simulator's kind in a real Spark: a job answers, byte for byte, as hosts beside us do.

One job runs them all. Each query is fragments of its own, so that each of its operators' hosts has a partition; their orders
are random, and so need not be such as the query's other fragments would lead to.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.installing import install
from boreal.query.spec import Mode, Query, load_query
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.stack.servers import KafkaServer, RedisServer
from simulation.own_operators import OPERATORS
from simulation.queries import SCHEMA, Menu, make_operators
from tests.spark.jobs import Script, SparkJob, environment_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak, pytest.mark.xdist_group("servers")]

QUERIES = 20
ANSWERED_S = 180.0


def many_queries(name: str, seed: int) -> Query:
    """One query that is many, side by side; what they make meets in a union, beside its node, so that all of it is needed."""
    streams = {stream: {"time": "time", "schema": {"time": "int", **SCHEMA}} for stream in ("a", "b", "c")}
    money = {"total": "sum(d * 1.19)", "mean": "avg(d)", "least": "min(d)", "last": "last(day)", "kinds": "count(distinct d)"}
    streams["m"] = {"time": "time", "schema": {"time": "int", "d": "decimal(21, 2)", "day": "date"}}
    operators: dict[str, Any] = {
        "later": {"map": "m", "select": {"d": "d - 0.005", "day": "day + 1"}},
        "money": {"aggregate": "later", "window": {"sliding": "2s", "every": "1s"}, "by": ["day"], "compute": money},
        "end_of_money": {"aggregate": "money", "window": {"tumbling": "1s"}, "compute": {"rows": "count(*)"}},
    }
    fragments: dict[str, Any] = {"of_money": {"operators": ["later", "money"]}}
    ends = ["end_of_money"]
    for number in range(QUERIES):
        rng = Random(f"{seed}/{number}")
        some = rng.sample(("a", "b", "c"), rng.randint(1, 3))
        shape, menu = rng.choice((*4 * ["single"], "chain", "diamond")), Menu(recent=number % 2 == 1, own=number % 4 > 1)
        sketch, output = make_operators(rng, some, shape, menu)
        ours = {operator: f"q{number}_{operator}" for operator in sketch.operators}
        for operator, spec in sketch.operators.items():
            kind, source = next(iter(spec.items()))
            sources = [ours.get(one, one) for one in source] if isinstance(source, list) else ours.get(source, source)
            operators[ours[operator]] = {**spec, kind: sources}
        for place, block in enumerate(filter(None, sketch.blocks)):
            fragments[f"f{number}_{place}"] = {"operators": [ours[operator] for operator in block]}
        ends.append(f"end{number}")
        operators[ends[-1]] = {"aggregate": ours[output], "window": {"tumbling": "1s"}, "compute": {"rows": "count(*)"}}
    operators["all"] = {"union": ends}
    fragments["together"] = {"operators": [*ends, "all"], "engine": "native"}
    return load_query(
        {"name": name, "streams": streams, "operators": operators, "output": "all", "fragments": fragments, "engine": "spark"}
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2, 3))])
def test_random_queries_give_the_same_bytes(kafka: KafkaServer, tmp_path: Path, fresh_name: str, seed: int) -> None:
    with RedisServer(tmp_path / "redis") as redis:
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}, redis=RedisSettings(url=redis.url))
        operators = {name: f"simulation.own_operators:{kind.__name__}" for name, kind in OPERATORS.items()}
        installed = install(tmp_path / "installed", "simulated-operators", "1.0", operators)
        environment = {**environment_of(settings), "PYTHONPATH": str(installed)}
        with SparkJob(settings, many_queries(fresh_name, seed), tmp_path, environment) as job:
            job.spawn()
            scripts = [Script(fragment, seed + place) for place, fragment in enumerate(job.fragments)]
            for mode in Mode:
                for script in scripts:
                    script.begin(mode)
                    script.go_on(25, rows=30)
            assert len(scripts) >= QUERIES
            job.wait_ready()
            job.give(scripts)
            if seed:
                wait_until(lambda: any(heard.answers for heard in job.heard), "some orders are obeyed")
                for worker in job.workers():
                    worker.kill()
            job.check(scripts, ANSWERED_S)
            assert not job.ended
