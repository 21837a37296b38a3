"""Workers that join a site beside an existing Kafka and Redis: they share the roles of a query, and replace each other."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.stack import StackInstallation
from bench.deployment import PATIENCE_S, ROOT, KafkaFeeder, wait_until
from bench.joined_deployment import SUPERVISOR, JoinedDeployment
from deployment.placer import DETECTION_US
from tests.installing import EXAMPLE, install_example
from tests.stack.breaking import QUERY, X_S, Bench, Ear, report

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]


class Joined(JoinedDeployment):
    """Its roles run where the supervisor places them."""

    def starts(self) -> dict[str, int]:
        """Of each role, the number of the record with which it was started."""
        workers = [said for name, said in self.statuses().items() if name.startswith("worker.")]
        return {role: said["start"] for worker in workers for role, said in worker["roles"].items()}

    def shares(self) -> list[int]:
        """How many roles each worker runs."""
        return sorted(Counter(self.places().values()).values())

    def problem(self) -> Any:
        return self.statuses()["supervisor"]["queries"][self.spec.name]["problem"]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Joined]:
    with Joined(tmp_path, QUERY) as deployment:
        deployment.begin("supervisor", *SUPERVISOR)
        yield deployment


@pytest.mark.soak
def test_workers_replace_each_other_and_roles_go_on_without_their_supervisor(joined: Joined) -> None:
    workers = {name: joined.join(name) for name in ("w1", "w2")}
    wait_until(lambda: joined.shares() == [2, 3], "the workers share all roles", joined.explain)
    before = joined.places()
    assert before["node.faults.r0"] != before["node.faults.r1"]
    with closing(StackInstallation(joined.settings)) as installation:
        wait_until(lambda: len(installation.workers()) == len(workers), "the API has heard them", joined.explain)
        shown = [{each["name"]: each["roles"]} for each in installation.workers()]
    assert shown == [{name: sorted(role for role, at in before.items() if at == name)} for name in workers]
    with KafkaFeeder(joined, rows_per_second=50, period_s=0.1) as feeder, Ear(joined) as ear:
        bench = Bench(joined, feeder, ear)
        bench.breathe(2)
        since = bench.mark()
        # Clients go on with the other replica, as long as their egress is there.
        [left] = {*workers} - {before["egress.faults.a"]}
        killed, last = workers[left], before["egress.faults.a"]
        killed.is_wanted = False
        killed.signal(signal.SIGKILL)
        moved = {name for name, worker in before.items() if worker == left and not name.startswith("node.")}
        took_s = wait_until(lambda: all(joined.places().get(name) == last for name in moved), "others run them", joined.explain)
        [waits] = {name for name, worker in before.items() if worker == left} - moved
        problem = f"each worker of site a runs another replica: start one more for {waits}"
        wait_until(lambda: bool(joined.problem() == problem), "it is said what is lacking", joined.explain)
        killed.start()
        killed.is_wanted = True
        back_s = wait_until(lambda: joined.shares() == [2, 3], "it has its share", joined.explain)
        joined.wait_ready()
        placed, starts = joined.places(), joined.starts()
        assert placed["node.faults.r0"] != placed["node.faults.r1"]
        joined.services["supervisor"].signal(signal.SIGKILL)
        joined.join("w1", "again").is_wanted = False
        figures = bench.check(since)
    second = joined.services["again"]
    assert second.process is not None and second.process.wait(PATIENCE_S) == 1
    assert "another worker of site a has the name w1: give --name" in second.log.read_text()
    report("a worker that had joined is killed, and later the supervisor", figures)
    print(f"the other worker runs its roles after {took_s:.1f} s; back, it has its share after {back_s:.1f} s")
    if bench.may_be_timed:  # else a worker may not have been heard for a while, though it was there
        assert took_s < DETECTION_US / 1e6 + X_S
        wait_until(lambda: joined.places() == placed, "the next supervisor takes roles over where they run", joined.explain)
        wait_until(lambda: joined.starts() == starts, "and starts none again", joined.explain)


@pytest.mark.soak
def test_a_worker_without_the_package_of_an_operator_says_so_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one runs all roles but a replica, which begins once the package is there."""
    install_example(tmp_path / "here", monkeypatch)
    vwap = yaml.safe_load((EXAMPLE / "vwap.yaml").read_text()) | {"engine": "native"}
    vwap["streams"]["trades"]["topic"] = "trades"
    late = tmp_path / "late"
    late.mkdir()
    with Joined(tmp_path / "deployment", vwap) as joined:
        joined.begin("supervisor", *SUPERVISOR, PYTHONPATH=path_of(tmp_path / "here"))
        joined.join("w1", PYTHONPATH=path_of(tmp_path / "here"))
        joined.join("w2", PYTHONPATH=path_of(late))
        nodes = {"node.vwap.r0", "node.vwap.r1"}

        def runs() -> set[str]:
            """The roles of the worker that has the package."""
            return {role for role, worker in joined.places().items() if worker == "w1"}

        wait_until(lambda: len(runs() & nodes) == 1 and len(runs()) == 3, "all but a replica run there", joined.explain)
        [role], [other] = nodes - runs(), nodes & runs()

        def said(name: str) -> tuple[bool, str]:
            status = joined.statuses().get(name, {})
            return bool(status.get("ready")), str(status.get("problem") or "")

        wait_until(lambda: "operators.tagged.operator" in said(role)[1], "what is missing is named", joined.explain)
        assert "is not installed here" in said(role)[1]
        wait_until(lambda: said(other) == (True, ""), "the other replica runs", joined.explain)
        [metadata] = (tmp_path / "here").glob("*.dist-info")
        shutil.copytree(metadata, late / metadata.name)
        wait_until(lambda: said(role) == (True, ""), "the role begins", joined.explain)


def path_of(folder: Path) -> str:
    return os.pathsep.join((str(folder), str(EXAMPLE), str(ROOT)))
