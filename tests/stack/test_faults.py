"""Real processes, really broken: each scenario breaks something while rows flow, mends it, and then holds I1-I6.

All scenarios of a deployment share it, one after the other, as a day in production would: what one leaves behind, the
next has to live with. The figures of each are printed as a table (docs/faults.md has a copy).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from bench.deployment import wait_until
from services.kafka.topics import control_topic, delete, ensure, query_topics
from tests.stack.breaking import QUERY, X_S, Bench, flowing, report

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]


@pytest.fixture(scope="module")
def one_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with flowing(tmp_path_factory.mktemp("one-site"), QUERY) as bench:
        yield bench


Scenario = Callable[[Bench], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(action: Scenario) -> Scenario:
    SCENARIOS[action.__name__] = action
    return action


@scenario
def nothing_happens(bench: Bench) -> None:
    bench.breathe(3)


@scenario
def a_replica_is_killed(bench: Bench) -> None:
    bench.deployment.kill("node.r0")
    bench.breathe(2)


@scenario
def both_replicas_are_killed(bench: Bench) -> None:
    bench.deployment.kill("node.r0")
    bench.deployment.kill("node.r1")
    bench.breathe(4)


@scenario
def a_source_is_killed(bench: Bench) -> None:
    bench.deployment.kill("source.left")
    bench.breathe(4)


@scenario
def a_source_is_dead_for_longer_than_x(bench: Bench) -> None:
    with bench.deployment.dead("source.left"):
        bench.breathe(2 * X_S)


@scenario
def the_egress_is_killed(bench: Bench) -> None:
    bench.deployment.kill("egress.a")
    bench.breathe(1)


@scenario
def the_monitor_is_killed(bench: Bench) -> None:
    bench.deployment.kill("monitor")
    bench.breathe(2)


@scenario
def a_source_is_cut_for_less_than_alpha_x(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(0.25 * X_S)


@scenario
def a_source_is_cut_for_five_x(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(5 * X_S)


@scenario
def a_source_is_cut_again_in_mid_correction(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(2 * X_S)
    wait_until(
        lambda: any(state in ("STABILIZATION", "STABLE") for state in bench.deployment.states().values()),
        "a correction has begun",
    )
    with bench.deployment.cut("source.left"):
        bench.breathe(2 * X_S)


@scenario
def a_replica_is_killed_in_up_failure(bench: Bench) -> None:
    with bench.deployment.cut("source.left"):
        bench.breathe(1.5 * X_S)
        bench.deployment.kill("node.r0")
        bench.breathe(X_S)


@scenario
def a_replica_is_killed_in_mid_correction(bench: Bench) -> None:
    with bench.deployment.cut("source.right"):
        bench.breathe(1.5 * X_S)
    bench.deployment.kill("node.r1")
    bench.breathe(2)


@scenario
def a_replica_is_frozen_and_thaws(bench: Bench) -> None:
    with bench.deployment.frozen("node.r0"):
        bench.breathe(1.5 * X_S)


@scenario
def a_replica_is_cut_from_its_broker(bench: Bench) -> None:
    with bench.deployment.cut("node.r1"):
        bench.breathe(2 * X_S)


@scenario
def a_link_is_slow(bench: Bench) -> None:
    link = bench.deployment.service("source.right").links["a"]
    link.slow(0.3)
    try:
        bench.breathe(6)
    finally:
        link.slow(0)


@scenario
def the_broker_is_killed_and_comes_back(bench: Bench) -> None:
    kafka = bench.deployment.kafka["a"]
    kafka.kill()
    bench.breathe(1)
    kafka.start()
    bench.breathe(2)


@scenario
def redis_is_killed_and_comes_back(bench: Bench) -> None:
    bench.deployment.redis.kill()
    with bench.deployment.cut("source.left"):
        bench.breathe(2 * X_S)
    bench.deployment.redis.start()


@scenario
def redis_is_wiped_and_a_replica_killed(bench: Bench) -> None:
    bench.deployment.redis.wipe()
    bench.deployment.kill("node.r0")
    bench.breathe(3)


for _failpoint, _who in (
    ("node.before_append:200", "node.r0"),
    ("node.between_appends:200", "node.r0"),
    ("node.before_acknowledge:5", "node.r1"),
    ("source.between_logs:20", "source.left"),
    ("egress.between_out_and_stable:20", "egress.a"),
    ("egress.before_commit:5", "egress.a"),
    ("egress.after_commit:5", "egress.a"),
):

    def _dies(bench: Bench, who: str = _who, failpoint: str = _failpoint) -> None:
        starts = bench.deployment.service(who).starts
        bench.deployment.dies_at(who, failpoint)
        wait_until(lambda: bench.deployment.service(who).starts >= starts + 2, f"{who} has died at {failpoint}", within_s=30)

    SCENARIOS[f"dies at {_failpoint.partition(':')[0]}"] = _dies


@scenario
def the_control_topic_is_lost(bench: Bench) -> None:
    home = bench.deployment.clusters["a"]
    delete(home, [control_topic("faults")])
    bench.breathe(1.5 * X_S)
    ensure(home, query_topics(bench.deployment.layout)["a"])


for _failpoint in ("node.before_checkpoint", "node.after_checkpoint"):

    def _dies_at_checkpoint(bench: Bench, failpoint: str = _failpoint) -> None:
        """A checkpoint is made where a failure begins to be answered tentatively."""
        service = bench.deployment.service("node.r0")
        starts = service.starts
        bench.deployment.dies_at("node.r0", failpoint)
        wait_until(lambda: service.starts > starts, "the life that will die has begun")
        bench.deployment.wait_ready()
        with bench.deployment.cut("source.left"):
            wait_until(lambda: service.starts >= starts + 2, f"node.r0 has died at {failpoint}", within_s=30)

    SCENARIOS[f"dies at {_failpoint}"] = _dies_at_checkpoint


LATE = {
    # All paths are gone, or the client's own: nothing can be given meanwhile.
    "both_replicas_are_killed",
    "the_egress_is_killed",
    "the_broker_is_killed_and_comes_back",
}


EVERY_RUN = {
    "a_source_is_cut_for_less_than_alpha_x",
    "a_replica_is_killed_in_mid_correction",
}
"""`make test` takes these; `make faults` takes them all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERY_RUN else pytest.mark.soak) for name in SCENARIOS]
)
def test_after_it_the_answer_is_right(one_site: Bench, name: str) -> None:
    since = one_site.mark()
    SCENARIOS[name](one_site)
    figures = one_site.check(since, may_be_late=name in LATE or name.startswith("dies at egress"))
    report(name, figures)
    if name in ("nothing_happens", "a_source_is_cut_for_less_than_alpha_x", "the_control_topic_is_lost"):
        assert figures["tentative"] == 0 or not one_site.may_be_timed
    if name in ("a_source_is_cut_for_five_x", "redis_is_killed_and_comes_back"):
        assert figures["tentative"] > 0 and figures["undone"] == figures["tentative"]
        logs = {replica: one_site.deployment.service(f"node.{replica}").log.read_text() for replica in ("r0", "r1")}
        said = r"main\.%s\.0 answers tentatively after a wait of \d\.\d+ s for left$"
        assert any(re.search(said % replica, log, re.MULTILINE) for replica, log in logs.items())
