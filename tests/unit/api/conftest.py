"""The API over an installation in memory, and callers of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from api import create_app
from api.dashboard import add_dashboard
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.server import server_config
from api.settings import ApiSettings
from api.tokens import Role, TokenStore
from services.stack.servers import free_port
from tests.unit.api.memory import MemoryInstallation

ADDRESS = "http://127.0.0.1:8080"


IDLE = ("sh", "-c", "exec cat")
"""The command of a job that does nothing until its input ends."""


@pytest.fixture
def installation() -> MemoryInstallation:
    return MemoryInstallation()


@pytest.fixture
def tokens(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "data")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Jobs that do nothing."""
    made = Jobs(tmp_path / "jobs", command=IDLE)
    yield made
    made.close()


@pytest.fixture
def client(installation: MemoryInstallation, tokens: TokenStore, jobs: Jobs, tmp_path: Path) -> Iterator[TestClient]:
    """A caller without a token."""
    app = create_app(ApiSettings(), installation, tokens, jobs)
    add_dashboard(app, tmp_path)
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def by(client: TestClient, tokens: TokenStore) -> Callable[[Role], dict[str, str]]:
    """The headers of a caller with a role."""
    return lambda role: {"Authorization": f"Bearer {tokens.create(role.value, [role])[1]}"}


@pytest.fixture
def admin(client: TestClient, by: Callable[[Role], dict[str, str]]) -> TestClient:
    client.headers.update(by(Role.ADMIN))
    return client


@pytest.fixture
def query(admin: TestClient) -> dict[str, Any]:
    """A query that exists: what its creation answered."""
    answer = admin.put("/api/v1/queries/departures", json=EXAMPLE_SPEC)
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.fixture
def address(installation: MemoryInstallation, tokens: TokenStore, jobs: Jobs) -> Iterator[str]:
    """Where the API listens, on a real socket."""
    port = free_port()
    app = create_app(ApiSettings(), installation, tokens, jobs)
    server = uvicorn.Server(server_config(app, ApiSettings(port=port)))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=10)
    assert not thread.is_alive(), "open streams hold the end"
