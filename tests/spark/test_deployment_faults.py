"""A deployment with its operators in Spark, really broken: a job, its JVM, a Python worker, Redis or the broker dies in each of
the states that a replica can be in, and in the end the answer is right.

The scenarios share a deployment, as those of tests/stack/test_faults.py do. `make soak` takes them: jobs that start
after each other on two cores take minutes; tests/spark/test_jobs.py kills jobs in `make test`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest

from bench.deployment import wait_until
from boreal.query.spec import Mode
from tests.spark.jobs import jvm_of, workers_of
from tests.stack.breaking import QUERY, X_S, Bench, flowing, report

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak]

READY_S = 240.0
QUIETLY = {"bucket": "200ms", "boundary_interval": "200ms", "heartbeat": "200ms"}
"""Broker, six services and two jobs share the cores here, and a job that comes back needs some, too: by default they would take
nearly all of two only to tell each other how far they are (docs/spark.md)."""
MINUTE_S = 60.0
STATES = ("STABLE", "UP_FAILURE", "STABILIZATION")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    query = {**QUERY, "name": "sparks", "engine": "spark", "tuning": QUIETLY}
    with flowing(tmp_path_factory.mktemp("spark"), query, ready_s=READY_S) as bench:
        bench.check(bench.mark(), may_be_late=True)  # a job that was just started is slow at first
        yield bench


def kill_driver(bench: Bench) -> None:
    bench.deployment.kill("spark.r0")


def kill_jvm(bench: Bench) -> None:
    jvm_of(bench.deployment.service("spark.r0").pid).kill()


def kill_worker(bench: Bench) -> None:
    for worker in workers_of(bench.deployment.service("spark.r0").pid):
        worker.kill()


VICTIMS: dict[str, Callable[[Bench], None]] = {"driver": kill_driver, "JVM": kill_jvm, "worker": kill_worker}


def await_state(bench: Bench, state: str) -> None:
    wait_until(lambda: bench.deployment.states()["main.r0.0"] == state, f"r0 is in {state}", bench.deployment.explain)


def outlive(bench: Bench, kill: Callable[[Bench], None], state: str) -> None:
    """Bring r0 into a state, and kill something there."""
    if state == "STABLE":
        kill(bench)
        bench.breathe(4)
        return
    with bench.deployment.cut("source.left"):
        bench.breathe(1.5 * X_S)
        await_state(bench, "UP_FAILURE")
        if state == "UP_FAILURE":
            kill(bench)
        bench.breathe(X_S)
    if state == "STABILIZATION":
        # A correction may be over between two looks: then what is killed has just ended one.
        wait_until(lambda: bench.deployment.states()["main.r0.0"] != "UP_FAILURE", "a correction begins")
        kill(bench)
        bench.breathe(2)


@pytest.mark.parametrize(("victim", "state"), product(VICTIMS, STATES))
def test_what_dies_in_any_state_costs_no_row(bench: Bench, victim: str, state: str) -> None:
    since = bench.mark()
    outlive(bench, VICTIMS[victim], state)
    report(f"Spark: a {victim} is killed in {state}", bench.check(since))


def test_a_job_that_dies_before_the_copy_at_a_mark_has_arrived(bench: Bench) -> None:
    since, deployment = bench.mark(), bench.deployment
    deployment.redis.kill()
    with deployment.cut("source.left"):
        bench.breathe(1.5 * X_S)
        await_state(bench, "UP_FAILURE")
        kill_driver(bench)
        bench.breathe(X_S)
    deployment.redis.start()
    report("Spark: a job is killed before the copy at its MARK has arrived", bench.check(since))


def test_redis_may_be_away_while_a_mark_is_made(bench: Bench) -> None:
    since, deployment = bench.mark(), bench.deployment
    deployment.redis.kill()
    with deployment.cut("source.left"):
        bench.breathe(1.5 * X_S)
        await_state(bench, "UP_FAILURE")
        deployment.redis.start()
        bench.breathe(X_S)
    report("Spark: Redis is away at MARK", bench.check(since))


def test_redis_may_be_away_while_a_replica_rolls_back(bench: Bench) -> None:
    since, deployment = bench.mark(), bench.deployment
    with deployment.cut("source.left"):
        bench.breathe(1.5 * X_S)
        await_state(bench, "UP_FAILURE")
        deployment.redis.kill()
    await_state(bench, "STABLE")
    deployment.redis.start()
    report("Spark: Redis is away at ROLLBACK", bench.check(since))


@pytest.mark.parametrize("cut", [False, True])
def test_the_broker_may_be_restarted(bench: Bench, cut: bool) -> None:
    """Nothing can be given meanwhile, so it may be late."""
    since, kafka = bench.mark(), bench.deployment.kafka["a"]
    with bench.deployment.cut("source.left") if cut else nullcontext():
        bench.breathe(1.5 * X_S)
        kafka.kill()
        bench.breathe(1)
        kafka.start()
        bench.breathe(2)
    when = "in UP_FAILURE" if cut else "in STABLE"
    report(f"Spark: the broker is killed and comes back, {when}", bench.check(since, may_be_late=True))


def test_both_jobs_may_die_at_once(bench: Bench) -> None:
    since = bench.mark()
    for job in ("spark.r0", "spark.r1"):
        bench.deployment.kill(job)
    bench.breathe(4)
    report("Spark: both jobs are killed", bench.check(since, may_be_late=True))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_minute_without_an_input_is_answered_within_x(tmp_path: Path, mode: Mode) -> None:
    query = {**QUERY, "name": "minute", "engine": "spark", "reconcile": mode.value, "tuning": QUIETLY}
    with flowing(tmp_path, query, ready_s=READY_S) as bench:
        bench.check(bench.mark(), may_be_late=True)  # a job that was just started is slow at first
        since = bench.mark()
        with bench.deployment.cut("source.left"):
            bench.breathe(MINUTE_S)
        figures = bench.check(since)
        report(f"Spark: an input is cut for a minute, {mode}", figures)
        assert figures["tentative"] > 0 and figures["undone"] == figures["tentative"]
        assert figures["delay_new_ms_max"] <= X_S * 1000
