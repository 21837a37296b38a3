"""Fixtures for all tests that need real servers. One broker and one Redis serve a whole run, all of its workers together;
each worker has one more broker, for the tests that break it. A test that needs another server makes its own, under tmp_path."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from services.stack.servers import KafkaServer, RedisServer


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before tests are selected by their marks, and before xdist reads their groups."""
    if config.option.markexpr == "soak":
        _select_what_goes_before(items)
    _group_what_shares(items)
    _put_groups_first(items)


def _put_groups_first(items: list[pytest.Item]) -> None:
    """The tests of whole deployments come first: they are one group on one worker, since two at a time starve each other's
    brokers on two cores, and they take the longest. Tests of one process beside a broker keep the other workers busy; those
    that share what takes long to make, a broker of their own or a year of flights and of runs without a fault, are a group,
    too, so that it is made once."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def _group_what_shares(items: list[pytest.Item]) -> None:
    """Tests for which their module makes something once are a group."""
    for item in items:
        known = getattr(item, "_fixtureinfo", None)
        made = [each.scope for several in known.name2fixturedefs.values() for each in several] if known is not None else []
        if "module" in made and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _select_what_goes_before(items: list[pytest.Item]) -> None:
    """The tests that a soak test goes on from are marked so, too."""
    left: set[Path] = set()
    for item in reversed(items):
        if item.get_closest_marker("soak") is not None:
            left.add(item.path)
        elif item.path in left and item.get_closest_marker("in_order") is not None:
            item.add_marker("soak")


def pytest_collection_finish() -> None:
    """What the imports and the collection made stays for the whole run: collecting garbage must not look through it again and
    again, which is a tenth of the time of tests that compute."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The directory of the shared servers. Once this run's last worker has let go of it, or died, tests/guard.py ends every
    server that still runs under the run's temporary directory."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base
    guard = None
    with (root / "users.lock").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with (root / "guard.lock").open("a") as lock, contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            program = Path(__file__).with_name("guard.py")
            guard = subprocess.Popen([sys.executable, program, root], stdin=lock, start_new_session=True)
        with formatted_once(root):
            yield root
    if guard:
        guard.wait()


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def formatted_once(root: Path) -> Iterator[None]:
    """Kafka's storage tool, a Java program, formats the first broker's directory; others that are alike get a copy, with an
    identity of their own."""
    from services.stack.servers import KafkaServer, new_cluster_id

    form = KafkaServer._format

    def copied(server: KafkaServer) -> None:
        template = root / f"formatted-{server.node_id}"
        with one_at_a_time(root / "formatted.lock"):
            if not template.exists():
                form(server)
                shutil.copytree(server.data, template)
                return
        shutil.copytree(template, server.data, dirs_exist_ok=True)
        facts = server.data / "meta.properties"
        facts.write_text(re.sub(r"^cluster\.id=.*", f"cluster.id={new_cluster_id()}", facts.read_text(), flags=re.M))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaServer, "_format", copied)
        yield


@pytest.fixture(scope="session")
def kafka(servers: Path) -> KafkaServer:
    """A running broker. Others use it too: take names from `fresh_name`, and leave it running."""
    from services.stack.servers import KafkaServer

    with one_at_a_time(servers / "kafka.lock"):
        server = KafkaServer(servers / "kafka")
        server.start()
    return server


@pytest.fixture(scope="session")
def kafka_to_break(servers: Path, tmp_path_factory: pytest.TempPathFactory) -> KafkaServer:
    from services.stack.servers import KafkaServer

    return KafkaServer(tmp_path_factory.getbasetemp() / "kafka-to-break")


@pytest.fixture
def own_kafka(kafka_to_break: KafkaServer) -> KafkaServer:
    """A running broker that nobody else uses now: kill, freeze or wipe it. Take names from `fresh_name`: it has been used."""
    kafka_to_break.resume()
    kafka_to_break.start()
    return kafka_to_break


@pytest.fixture(scope="session")
def redis_server(servers: Path) -> RedisServer:
    """A running Redis. Others use it too: take prefixes from `fresh_name`, and leave it running."""
    from services.stack.servers import RedisServer

    with one_at_a_time(servers / "redis.lock"):
        server = RedisServer(servers / "redis")
        server.start()
    return server


@pytest.fixture
def fresh_name() -> str:
    """A name that nothing on a shared server has yet: a letter, then letters and digits."""
    return f"t{uuid.uuid4().hex[:12]}"
