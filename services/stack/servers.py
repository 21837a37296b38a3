"""Real servers on this machine, one process each: a Kafka broker (KRaft, its own controller) and a Redis.

A server has a directory for its data, its configuration, its log (`server.log`) and `server.json`, which holds its ports and
its process. An object for the same directory, also in a later process, refers to the same server at the same address, running
or not. All listen on 127.0.0.1 only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import quote

import kafka
import kafka.errors
import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from boreal.client.kafka_clients import make_client
from services.hosting.fetch import java, kafka_jars, redis_server
from services.stack.ports import HOST, ServerFailed, free_port
from services.stack.state import created, is_same

START_SECONDS = 180.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02
LOOK_SECONDS = 3
LARGEST_MESSAGE = 64 << 20


class Server(ABC):
    """A process that outlives the process that started it, until stop() or kill(). As a context: started, and stopped at the
    end."""

    name: ClassVar[str]

    def __init__(self, directory: Path, ports: Sequence[int]) -> None:
        """ports: the wanted ones; 0: the port of an earlier start in the directory, else any free one."""
        self.directory = directory
        self.data = directory / "data"
        self.log = directory / "server.log"
        self._state = directory / "server.json"
        directory.mkdir(parents=True, exist_ok=True)
        state = self._read()
        known = state["ports"] if state else [0] * len(ports)
        self.ports: list[int] = [port or old or free_port() for port, old in zip(ports, known, strict=True)]
        if self.ports != known:
            self._write(None)

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self.ports[0]

    @property
    def pid(self) -> int | None:
        """The process id; None if the server does not run (stopped, killed, crashed)."""
        process = self._process()
        return process.pid if process else None

    def start(self) -> None:
        """Start the server unless it runs, and return when it answers. ServerFailed if it does not; it is then killed."""
        if self._process():
            self._await_answer()
            return
        self._claim_ports()
        self.prepare()
        try:
            self._launch()
            self._await_answer()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the process with SIGTERM, and kill it after STOP_SECONDS. No error if it does not run."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self._await_end(STOP_SECONDS)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash does."""
        self._signal(signal.SIGKILL)
        self._await_end(STOP_SECONDS)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the process: connections stay open, but it does not answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Lose all data, as when a machine is replaced: killed, emptied, and started again if it ran."""
        ran = self.pid is not None
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        if ran:
            self.start()

    @abstractmethod
    def prepare(self) -> None:
        """Write the files that the process reads when it starts. Can be repeated."""

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """The program (a path) and its arguments, to be run after `prepare`; it logs to stdout and stderr."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server answers clients: one attempt, of at most LOOK_SECONDS."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _claim_ports(self) -> None:
        """ServerFailed if a port is taken: the other process might even answer as if it were this server."""
        for port in self.ports:
            try:
                socket.create_server((HOST, port)).close()
            except OSError as error:
                raise ServerFailed(f"{self.name} in {self.directory} cannot listen: {error.strerror}") from error

    def _launch(self) -> None:
        # Not a Popen, which warns when its process outlives it, as servers should.
        command = self.command
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=files, setsid=True)
        self._write(psutil.Process(pid))

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            ended = not self._process()
            if ended or time.monotonic() > deadline:
                what = "ended while it started" if ended else f"did not answer within {START_SECONDS:.0f} s"
                raise ServerFailed(f"{self.name} in {self.directory} {what}: {self._log_end()}")
            time.sleep(POLL_SECONDS)

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._process():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} in {self.directory} still runs")
            time.sleep(POLL_SECONDS)

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.is_file() else "it wrote no log"

    def _signal(self, number: signal.Signals) -> None:
        if process := self._process():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _process(self) -> psutil.Process | None:
        """The live process; None if it has ended. The time of creation excludes a later process with the same id."""
        state = self._read()
        if not state or state["pid"] is None:
            return None
        try:
            process = psutil.Process(state["pid"])
            if not is_same(process, state["created"]):
                return None
            # A zombie with threads left has not ended yet: they still hold its ports.
            if process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1:
                return process
        except psutil.NoSuchProcess:
            return None
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # our own child: reap it
        return None

    def _read(self) -> dict[str, Any]:
        return json.loads(self._state.read_text()) if self._state.is_file() else {}

    def _write(self, process: psutil.Process | None) -> None:
        state = {"ports": self.ports, "pid": process and process.pid, "created": process and created(process)}
        written = self._state.with_suffix(".new")
        written.write_text(json.dumps(state))
        written.replace(self._state)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read: configurations hold passwords."""
    path.touch(mode=0o600)
    path.write_text(text)


def new_cluster_id() -> str:
    """22 characters that Kafka's storage tool accepts: as in Kafka itself, never one that looks like an option."""
    while True:
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not identity.startswith("-"):
            return identity


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """Clients use TLS and log in (SASL/PLAIN). All files are PEM."""

    user: str
    """The only user."""
    password: str
    """The user's password."""
    certificate: Path
    """The broker's certificate, for 127.0.0.1."""
    key: Path
    """The certificate's key (PKCS #8, not encrypted)."""
    authority: Path
    """The certificate of the authority that signed it."""


def class_archive() -> Path:
    """Where `services.stack.class_archive` keeps the broker's classes; a broker starts without if there are none."""
    return kafka_jars().with_suffix(".jsa")


class KafkaServer(Server):
    """One broker that is its own controller. The controller's port is never encrypted."""

    name = "Kafka"

    def __init__(self, directory: Path, port: int = 0, controller_port: int = 0, *, node_id: int = 1,
                 security: KafkaSecurity | None = None) -> None:
        super().__init__(directory, [port, controller_port])
        self.node_id = node_id
        self.security = security
        self._properties = directory / "server.properties"

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def client(self) -> dict[str, Any]:
        """The keyword arguments for any client of kafka-python."""
        address = {"bootstrap_servers": self.bootstrap}
        if not self.security:
            return address
        return address | {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.security.authority),
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": self.security.user,
            "sasl_plain_password": self.security.password,
        }

    def prepare(self) -> None:
        write_private(self._properties, "".join(f"{name}={value}\n" for name, value in self._settings().items()))
        if not (self.data / "meta.properties").exists():
            self._format()

    @property
    def command(self) -> list[str]:
        return self.java_command(*self._shared_classes(), "kafka.Kafka", str(self._properties))

    def is_ready(self) -> bool:
        """Whether the port is open (the cheaper check), and the controller has unfenced the broker."""
        with socket.socket() as probe:
            if probe.connect_ex((HOST, self.port)):
                return False
        try:
            limit = LOOK_SECONDS * 1000
            options = {**self.client, "bootstrap_timeout_ms": limit, "request_timeout_ms": limit}
            admin = make_client(kafka.KafkaAdminClient, options)
        except kafka.errors.KafkaError:
            return False
        try:
            return any(not broker["is_fenced"] for broker in admin.describe_cluster()["brokers"])
        except kafka.errors.KafkaError:
            return False
        finally:
            admin.close()

    def _format(self) -> None:
        """Kafka's storage tool gives an empty directory its identity."""
        arguments = ["kafka.tools.StorageTool", "format", "-t", new_cluster_id(), "-c", str(self._properties)]
        command = self.java_command(*self._shared_classes(), *arguments)
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=START_SECONDS)
        if run.returncode:
            raise ServerFailed(f"{self.name} could not format {self.data}: {run.stdout[-2000:]}")

    @staticmethod
    def _shared_classes() -> list[str]:
        return [f"-XX:SharedArchiveFile={archive}"] if (archive := class_archive()).is_file() else []

    @staticmethod
    def java_command(*arguments: str) -> list[str]:
        """A Java command: a small heap, the collector that starts fastest, warnings and errors on stderr, which is
        server.log. No optimising compiler: for minutes it takes half as much processor time as the broker's work, more than
        it saves."""
        return [str(java()), "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-XX:+ExitOnOutOfMemoryError", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
                "-cp", f"{kafka_jars()}/*", *arguments]

    def _settings(self) -> dict[str, object]:
        clients, controller = self.ports
        return {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            "controller.quorum.voters": f"{self.node_id}@{HOST}:{controller}",
            "listeners": f"CLIENTS://{HOST}:{clients},CONTROLLER://{HOST}:{controller}",
            "listener.security.protocol.map": f"CLIENTS:{'SASL_SSL' if self.security else 'PLAINTEXT'},CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENTS",
            "log.dirs": self.data,
            # One broker: its internal topics have one replica, and few partitions start faster.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            # Frames are large, and retention is short.
            "message.max.bytes": LARGEST_MESSAGE,
            "replica.fetch.max.bytes": LARGEST_MESSAGE,
            "log.retention.check.interval.ms": 10_000,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
            # A broker that was killed may come back when its old session has run out: by default after 9 s.
            "broker.heartbeat.interval.ms": 400,
            "broker.session.timeout.ms": 2000,
        } | (self._secured(self.security) if self.security else {})

    @staticmethod
    def _secured(security: KafkaSecurity) -> dict[str, object]:
        def on_one_line(*files: Path) -> str:
            return "\\n".join(file.read_text().strip().replace("\n", "\\n") for file in files)

        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        login = f'username="{security.user}" password="{security.password}" user_{security.user}="{security.password}"'
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f"{module} {login};",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": on_one_line(security.certificate),
            "ssl.keystore.key": on_one_line(security.key),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": on_one_line(security.authority),
        }


class RedisServer(Server):
    """One Redis that keeps its data across a kill (a crash of the machine may lose the last second)."""

    name = "Redis"

    def __init__(self, directory: Path, port: int = 0, *, password: str | None = None) -> None:
        super().__init__(directory, [port])
        self.password = password
        self._configuration = directory / "redis.conf"

    @property
    def url(self) -> str:
        """The address, password included, as redis-py takes it."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{login}{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self.data.mkdir(exist_ok=True)
        settings = {
            "bind": HOST,
            "port": self.port,
            "dir": json.dumps(str(self.data)),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
        } | ({"requirepass": json.dumps(self.password)} if self.password else {})
        write_private(self._configuration, "".join(f"{name} {value}\n" for name, value in settings.items()))

    @property
    def command(self) -> list[str]:
        return [str(redis_server()), str(self._configuration)]

    def is_ready(self) -> bool:
        """Whether it answers a ping, which it refuses while it still loads its data."""
        try:
            with redis.Redis.from_url(self.url, socket_timeout=LOOK_SECONDS, retry=Retry(NoBackoff(), 0)) as client:
                return bool(client.ping())
        except redis.exceptions.RedisError:
            return False
