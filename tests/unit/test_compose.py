"""The containers run what the local stack runs: the same processes, the same settings of the servers, the same variables."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from api.settings import ApiSettings
from boreal.query.spec import load_query
from boreal_cli.app import app
from deployment.query_record import QueryRecord
from services.stack.children import MONITOR, api_child, query_children
from services.stack.description import supervisor_command
from services.stack.launcher import LocalStack
from services.stack.servers import KafkaServer, RedisServer

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
WITH_WORKERS = ROOT / "docker-compose.workers.yml"

OF_ITS_PLACE = {"listeners", "advertised.listeners", "log.dirs", "controller.quorum.voters", "listener.security.protocol.map"}
"""Settings of a broker that say where it is, and so differ."""

MONITORING = ("prometheus", "grafana")

QUERY = {
    "name": "q",
    "streams": {name: {"topic": name, "time": "at", "schema": {"k": "int"}} for name in ("left", "right")},
    "operators": {"all": {"union": ["left", "right"]}},
    "output": "all",
    "replicas": 3,
    "engine": ["spark", "native", "spark"],
}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())["services"]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> LocalStack:
    """A local stack of as many sites, described but never up."""
    stack = LocalStack(tmp_path_factory.mktemp("local"))
    stack.describe(2, None)
    return stack


def supervisors(services: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in services.items() if name.startswith("supervisor-")}


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_each_local_server_has_its_container(services: dict[str, Any], local: LocalStack) -> None:
    containers = {name for name in services if not name.startswith(("supervisor-", "spark-", "api", *MONITORING))}
    assert containers == {name.replace(".", "-") for name in local.servers()}


def test_each_site_has_a_supervisor_that_is_started_as_the_local_one_is(services: dict[str, Any], local: LocalStack) -> None:
    python, *common = (part for part in supervisor_command(allow_chaos=False) if part != "--local")
    for service in supervisors(services).values():
        assert service["command"][:-4] == ["python", *common], python
        assert option(service["command"], "--workers") == "2"
    assert [option(service["command"], "--site") for service in supervisors(services).values()] == list(local.sites)


def test_each_site_can_have_workers_that_join_it(services: dict[str, Any], local: LocalStack) -> None:
    changed = yaml.safe_load(WITH_WORKERS.read_text())["services"]
    assert changed.keys() == {f"{kind}-{site}" for kind in ("supervisor", "worker") for site in local.sites}
    for site in local.sites:
        supervisor, worker = changed[f"supervisor-{site}"]["command"], changed[f"worker-{site}"]
        assert supervisor == [*services[f"supervisor-{site}"]["command"][:-1], "joined"]
        assert worker["extends"] == {"file": COMPOSE.name, "service": f"supervisor-{site}"}
        program, command, *options = worker["command"]
        assert (program, options) == ("boreal", ["--site", site])
        assert command in {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}


def test_the_variables_are_those_of_the_local_stack(services: dict[str, Any], local: LocalStack) -> None:
    for service in supervisors(services).values():
        assert set(service["environment"]) == {*local.environment(), "BOREAL_SPARK__MASTER"}


def test_the_api_runs_as_the_local_one_does_and_only_this_machine_reaches_it(services: dict[str, Any]) -> None:
    api, supervisor = services["api"], services["supervisor-a"]
    assert ["python", *api_child(8080, allow_chaos=False).command[1:3]] == api["command"]
    assert api["ports"] == ["127.0.0.1:8080:8080"]
    own = {name: value for name, value in api["environment"].items() if name.startswith("BOREAL_API__")}
    assert api["environment"] == {**supervisor["environment"], **own}
    assert {name.removeprefix("BOREAL_API__").lower() for name in own} <= set(ApiSettings.model_fields)
    settings = {name.removeprefix("BOREAL_API__").lower(): yaml.safe_load(value) for name, value in own.items()}
    ApiSettings(**settings).check()


def test_the_jobs_find_the_spark_that_is_there(services: dict[str, Any]) -> None:
    """The jars of the pyspark that the image installs have the two programs; they run in that image, as executors must."""
    [classes] = (zipfile.ZipFile(jar).namelist() for jar in Path(pyspark.__file__).parent.glob("jars/spark-core_*.jar"))
    master, worker = services["spark-master"], services["spark-worker"]
    for service in (master, worker):
        assert f"{service['command'][1].replace('.', '/')}.class" in classes
        assert service["command"][0] == "spark-class" and service["image"] == services["supervisor-a"]["image"]
    address = f"spark://{option(master['command'], '--host')}:{option(master['command'], '--port')}"
    assert option(master["command"], "--host") == "spark-master"
    assert worker["command"][-1] == address
    assert {service["environment"]["BOREAL_SPARK__MASTER"] for service in supervisors(services).values()} == {address}


def test_whatever_a_container_writes_is_where_its_user_may_write(services: dict[str, Any]) -> None:
    """Below what the image makes for that user. A Spark worker that is told of no such place ends at once."""
    own = "/var/lib/boreal"
    image = (ROOT / "Dockerfile").read_text()
    assert f"install --directory --owner boreal {own}\nUSER boreal\nWORKDIR {own}\n" in image
    assert option(services["spark-worker"]["command"], "--work-dir").startswith(f"{own}/")
    assert {service["environment"]["BOREAL_DATA"] for service in supervisors(services).values()} == {own}
    assert all(service["volumes"][0].endswith(f":{own}") for service in supervisors(services).values())


def test_the_supervisors_together_run_what_the_local_one_runs(services: dict[str, Any], local: LocalStack) -> None:
    record = QueryRecord("q", load_query(QUERY).dump(), 1)
    everything = query_children(record, local.sites, local.sites)
    own = [(option(service["command"], "--site"),) for service in supervisors(services).values()]
    apart = [child for sites in own for child in query_children(record, local.sites, sites)]
    assert sorted(child.name for child in apart) == sorted(child.name for child in everything)
    assert sorted(child.name for child in everything) == [
        "egress.q.a", "egress.q.b", "node.q.r0", "node.q.r1", "node.q.r2", "source.q.left", "source.q.right",
        "spark.q.r0", "spark.q.r2",
    ]  # fmt: skip
    assert MONITOR.kind == "monitor"


def test_the_brokers_are_set_as_the_local_ones_are(services: dict[str, Any], tmp_path: Path) -> None:
    server = KafkaServer(tmp_path)
    server.data.mkdir()
    (server.data / "meta.properties").touch()  # formatted already, so that preparing it takes no Java
    server.prepare()
    lines = (line.split("=", 1) for line in (tmp_path / "server.properties").read_text().splitlines())
    local = {name: value for name, value in lines if name not in OF_ITS_PLACE}
    for name, service in services.items():
        if name.startswith("kafka-"):
            given = service["environment"]
            there = {key.removeprefix("KAFKA_").lower().replace("_", "."): value for key, value in given.items()}
            assert {key: there.get(key) for key in local} == local
            assert set(there) - set(local) - OF_ITS_PLACE == {"heap.opts"}


def test_redis_is_set_as_the_local_one_is(services: dict[str, Any], tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.prepare()
    lines = (line.split(" ", 1) for line in (tmp_path / "redis.conf").read_text().splitlines())
    local = {name: value.strip('"') for name, value in lines if name not in ("bind", "port", "dir", "daemonize")}
    program, *arguments = services["redis"]["command"]
    assert program == "redis-server"
    assert dict(zip((name.removeprefix("--") for name in arguments[::2]), arguments[1::2], strict=True)) == local


def test_what_the_image_holds_is_what_the_package_holds() -> None:
    copied = {line.split()[1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")}
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {name for name in packages if any(fnmatch(name, pattern) for pattern in patterns)} <= copied


@pytest.mark.skipif(shutil.which("docker") is None, reason="needs docker compose")
def test_docker_compose_accepts_it() -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose here")
    subprocess.run(["docker", "compose", "-f", str(COMPOSE), "config", "--quiet"], check=True, capture_output=True)
