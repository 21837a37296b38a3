"""Who may call what: tokens, roles, hosts, origins and sizes."""

from __future__ import annotations

import json
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import SecretStr

import api.gate
from api import create_app, dashboard
from api.app import ROUTERS
from api.dependencies import Requires
from api.gate import BODY_BYTES_MAX
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.server import MOST_HEAD_BYTES
from api.settings import ApiSettings
from api.tokens import Role, TokenStore
from boreal.model.errors import UserError
from tests.unit.api.memory import MemoryInstallation
from tests.unit.api.test_queries import QUERIES, problem

SESSION = "/api/v1/session"
"""Any token may ask for it, whatever its role."""


def routes() -> Iterator[tuple[str, str, Role | None]]:
    """The method, path and role of every route; None: of any, or without a token. The pages themselves are left out."""
    for router in (*ROUTERS, dashboard.router):
        for route in router.routes:
            assert isinstance(route, APIRoute)
            if not route.include_in_schema:
                continue
            asked = [each.dependency.role for each in route.dependencies if isinstance(each.dependency, Requires)]
            for method in sorted(route.methods or ()):
                yield method, route.path, asked[0] if asked else None


def concrete(path: str) -> str:
    return re.sub(r"\{\w+\}", "departures", path)


def test_every_route_under_api_wants_a_token_and_a_role(client: TestClient) -> None:
    found = list(routes())
    assert len(found) > 10
    for method, path, role in found:
        answer = client.request(method, concrete(path))
        if path in ("/healthz", "/readyz"):
            assert answer.status_code == 200 and role is None
        else:
            assert path == SESSION or role is not None, f"{method} {path} asks for no role"
            problem(answer, 401)
            assert answer.headers["www-authenticate"].startswith("Bearer")
    for path in ("/api/v1/openapi.json", "/api/v1/nothing", "/api", "/api/", "/metrics"):
        problem(client.get(path), 401)


@pytest.mark.parametrize("role", Role)
def test_each_role_reaches_its_routes_and_no_others(
    client: TestClient, by: Callable[[Role], dict[str, str]], role: Role
) -> None:
    headers = {**by(role), "Last-Event-ID": "none"}  # which a stream refuses: it would have no end
    includes = {
        Role.VIEWER: {Role.VIEWER}, Role.OPERATOR: {Role.VIEWER, Role.OPERATOR},
        Role.ADMIN: {Role.VIEWER, Role.OPERATOR, Role.ADMIN}, Role.CHAOS: {Role.CHAOS},
    }[role]  # fmt: skip
    for method, path, asked in routes():
        if asked is not None:
            answer = client.request(method, concrete(path), headers=headers)
            assert (answer.status_code == 403) == (asked not in includes), f"{method} {path}: {answer.text}"
            if answer.status_code == 403:
                assert asked.value in problem(answer, 403, "Authorization")["fix"]
    answers = [client.request(method, SESSION, headers=headers) for method in ("GET", "POST", "DELETE")]
    assert [answer.status_code for answer in answers] == [200, 200, 204]
    assert answers[0].json()["may"][role.value] == (role is not Role.CHAOS), "nothing may be broken here"


def test_a_token_that_is_unknown_expired_or_revoked_is_refused(client: TestClient, tmp_path: Path) -> None:
    now = 1_000.0
    tokens = TokenStore(tmp_path / "other", now=lambda: now)
    made, text = tokens.create("grafana", [Role.VIEWER], for_s=60)
    _, lasting = tokens.create("ours", [Role.VIEWER])
    app = create_app(ApiSettings(), MemoryInstallation(), tokens, Jobs(tmp_path / "jobs"))
    caller = TestClient(app, base_url="http://127.0.0.1")

    def status(token: str, kind: str = "Bearer") -> int:
        return caller.get(QUERIES, headers={"Authorization": f"{kind} {token}"}).status_code

    assert (status(text), status(lasting), status(lasting, "bearer")) == (200, 200, 200)
    assert {status("x"), status(""), status(text, "Basic"), status(made.sha256), status(made.id)} == {401}
    now += 61
    assert (status(text), status(lasting)) == (401, 200)
    TokenStore(tmp_path / "other").revoke("ours")
    assert status(lasting) == 401
    with pytest.raises(UserError, match="there is no such token"):
        tokens.revoke("ours")


def test_only_hashes_are_kept_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    made, text = TokenStore(tmp_path).create("ours", [Role.ADMIN, Role.CHAOS])
    kept = tmp_path / "tokens.json"
    assert text not in kept.read_text() and stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert text not in repr(made) and made.sha256 not in repr(made)
    caller = TokenStore(tmp_path).caller(text)
    assert caller is not None and caller.name == "ours" and caller.may(Role.VIEWER) and caller.may(Role.CHAOS)


def test_the_token_of_up_and_of_the_settings_may_do_all(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-up\n")
    tokens = TokenStore(tmp_path, "of-settings")
    for text in ("of-up", "of-settings"):
        caller = tokens.caller(text)
        assert caller is not None and all(caller.may(role) for role in Role)
    assert tokens.caller("") is None


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "127.0.0.1", "localhost:9", "[::1]:8080", "LOCALHOST", "boreal.example:1"])
def test_known_names_may_be_called_at_any_port(tmp_path: Path, host: str) -> None:
    app = create_app(ApiSettings(hosts=["boreal.example"]), MemoryInstallation(), TokenStore(tmp_path), Jobs(tmp_path / "jobs"))
    assert TestClient(app).get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "169.254.0.1"])
def test_other_names_are_refused_even_with_a_token(admin: TestClient, host: str) -> None:
    problem(admin.get(QUERIES, headers={"Host": host}), 403, "Host")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:9999"}, {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
def test_pages_of_other_origins_are_refused(admin: TestClient, headers: dict[str, str]) -> None:
    problem(admin.post(QUERIES, json=EXAMPLE_SPEC, headers=headers), 403, "Origin")
    problem(admin.get(QUERIES, headers=headers), 403, "Origin")
    own = {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}
    answer = admin.get(QUERIES, headers=own)
    assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers


def test_a_body_that_is_too_long_is_refused_also_where_its_length_is_not_said(admin: TestClient) -> None:
    long = b" " * (BODY_BYTES_MAX + 1)
    problem(admin.post(QUERIES, content=long), 413, "body")
    problem(admin.post(QUERIES, content=iter([long])), 413, "body")


def refusal(connection: socket.socket) -> Any:
    """The problem document of an answer, after which the connection is closed."""
    answer = HTTPResponse(connection)
    answer.begin()
    assert answer.headers["content-type"] == "application/problem+json" and answer.headers["connection"] == "close"
    return json.loads(answer.read())


def test_headers_without_an_end_are_refused_and_long_bodies_are_not(address: str, tokens: TokenStore) -> None:
    host, port = urlsplit(address).hostname, urlsplit(address).port
    assert host is not None and port is not None
    piece = b"x" * (16 << 10)
    with socket.create_connection((host, port), timeout=10) as endless:
        endless.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: ")
        with suppress(ConnectionError):  # it is closed while we still send
            for _ in range(2 * MOST_HEAD_BYTES // len(piece) + 16):
                endless.sendall(piece)
        assert refusal(endless)["status"] == 431
    with socket.create_connection((host, port), timeout=10) as foreign:
        foreign.sendall(b"\x16\x03\x01 is not HTTP\r\n\r\n")
        assert refusal(foreign)["status"] == 400
    body = json.dumps({**EXAMPLE_SPEC, "name": "x" * 3 * MOST_HEAD_BYTES})
    headers = {"Authorization": f"Bearer {tokens.create('me', [Role.ADMIN])[1]}"}
    with closing(HTTPConnection(host, port, timeout=10)) as kept_open:
        for method, sent, status in 2 * (("POST", body, 422), ("GET", None, 200)):
            kept_open.request(method, "/api/v1/queries", sent, headers)
            answer = kept_open.getresponse()
            assert (answer.status, bool(answer.read())) == (status, True)


def test_a_token_that_calls_too_often_waits_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.gate, "time", SimpleNamespace(monotonic=lambda: 100.0))
    tokens = TokenStore(tmp_path, "ours")
    _, other = tokens.create("other", [Role.VIEWER])
    app = create_app(ApiSettings(requests_per_s=0.5), MemoryInstallation(), tokens, Jobs(tmp_path / "jobs"))
    caller = TestClient(app, base_url="http://127.0.0.1", headers={"Authorization": "Bearer ours"})
    assert caller.get(QUERIES).status_code == 200
    refused = caller.get(QUERIES)
    problem(refused, 429, "Authorization")
    assert refused.headers["retry-after"] == "2"
    assert caller.get("/healthz").status_code == 200
    assert caller.get(QUERIES, headers={"Authorization": f"Bearer {other}"}).status_code == 200


def test_what_is_not_a_route_is_a_problem_too(admin: TestClient) -> None:
    problem(admin.get("/api/v1/nothing"), 404, "path")
    answer = admin.put(QUERIES)
    problem(answer, 405, "method")
    assert answer.headers["allow"] == "GET, POST"


def test_an_error_of_our_own_says_nothing_of_itself(admin: TestClient, installation: MemoryInstallation, monkeypatch) -> None:
    def fail() -> None:
        raise AssertionError("the secret of the house")

    monkeypatch.setattr(installation, "freshness", fail)
    answer = admin.get(QUERIES)
    problem(answer, 500)
    assert "secret" not in answer.text


def test_answers_forbid_what_a_page_of_ours_does_not_need(admin: TestClient) -> None:
    headers = admin.get(QUERIES).headers
    assert headers["content-security-policy"].startswith("default-src 'self'")
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_other_machines_are_not_served_in_clear(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unencrypted"):
        create_app(ApiSettings(host="0.0.0.0"), MemoryInstallation(), TokenStore(tmp_path), Jobs(tmp_path / "jobs"))
    create_app(
        ApiSettings(host="0.0.0.0", behind_tls=True), MemoryInstallation(), TokenStore(tmp_path), Jobs(tmp_path / "jobs")
    )


def test_the_settings_are_shown_to_admins_without_secrets(admin: TestClient, tmp_path: Path) -> None:
    app = create_app(
        ApiSettings(token=SecretStr("hush")), MemoryInstallation(), TokenStore(tmp_path, "hush"), Jobs(tmp_path / "jobs")
    )
    shown = TestClient(app, base_url="http://127.0.0.1").get("/api/v1/config", headers={"Authorization": "Bearer hush"})
    assert shown.status_code == 200 and "hush" not in shown.text and shown.json()["api"]["port"] == 8080


def test_openapi_describes_every_refusal_as_a_problem(admin: TestClient) -> None:
    document = admin.get("/api/v1/openapi.json").json()
    assert {(method.upper(), path) for path, each in document["paths"].items() for method in each} == {
        (method, path) for method, path, _ in routes()
    }
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["responses"]["4XX"]["content"].keys() == {"application/problem+json"}
