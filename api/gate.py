"""What every request passes before it reaches a route: its Host, where it comes from, who calls and how often, and its length.

Plain ASGI, because it must see a body as it arrives, and streams as they leave.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem
from api.rates import Rates
from api.settings import is_loopback
from api.tokens import TokenStore

BODY_BYTES_MAX = 1 << 20
"""The longest body, but for rows."""
ROWS_BYTES_MAX = 16 << 20
"""The longest body of rows."""

WITHOUT_TOKEN = ("/healthz", "/readyz")
"""What a load balancer may ask. The page at `/` brings its token itself, and has no data."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Gate:
    """Refuses what must not reach a route."""

    def __init__(self, app: ASGIApp, tokens: TokenStore, hosts: Collection[str], rates: Rates) -> None:
        """hosts: by which the API is reached, beside localhost and loopback addresses."""
        self._app = app
        self._tokens = tokens
        self._rates = rates
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, path = Headers(scope=scope), scope["path"]
        refusal = self._refuse_host(headers) or self._refuse_origin(headers) or self._refuse_caller(scope, headers, path)
        limit = ROWS_BYTES_MAX if path.endswith("/tuples") else BODY_BYTES_MAX
        length = headers.get("content-length", "")
        if refusal is None and length.isdecimal() and int(length) > limit:
            refusal = problem(413, _too_long(limit), field="body", fix=f"send at most {limit} bytes at once")
        caller = scope.get("state", {}).get("caller")
        if refusal is None and caller is not None:
            wait_s = self._rates.begin(caller.id, time.monotonic())
            refusal = _too_fast(wait_s) if wait_s else None
        if refusal is not None:
            return await refusal(scope, receive, _with_headers(send))
        try:
            await self._app(scope, _counted(receive, limit), _with_headers(send))
        finally:
            if caller is not None:
                self._rates.end(caller.id)

    def _refuse_host(self, headers: Headers) -> ASGIApp | None:
        """A page of another name that resolves to this address (DNS rebinding) sends that name. Ports do not matter."""
        name = _host_name(headers.get("host", ""))
        if is_loopback(name) or name in self._hosts:
            return None
        fix = "call it by 127.0.0.1, or add the name to BOREAL_API__HOSTS"
        return problem(403, "the API is not known by this name", field="Host", value=headers.get("host"), fix=fix)

    def _refuse_origin(self, headers: Headers) -> ASGIApp | None:
        """Pages of other origins may call nothing, whatever the method."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_foreign = origin is not None and _place_of(origin) != headers.get("host")
        if not is_foreign and site not in ("cross-site", "same-site"):
            return None
        fix = "call it from its own page, or without a browser"
        return problem(403, "a page of another origin may not call the API", field="Origin", value=origin, fix=fix)

    def _refuse_caller(self, scope: Scope, headers: Headers, path: str) -> ASGIApp | None:
        is_open = path in WITHOUT_TOKEN or not (path == "/metrics" or path == "/api" or path.startswith("/api/"))
        if is_open:
            return None
        kind, _, text = headers.get("authorization", "").partition(" ")
        caller = self._tokens.caller(text.strip()) if kind.lower() == "bearer" else None
        if caller is None:
            what = "there is no token" if not text else "the token is not valid: unknown, revoked or expired"
            return problem(401, what, field="Authorization", headers={"WWW-Authenticate": 'Bearer realm="boreal"'})
        scope.setdefault("state", {})["caller"] = caller
        return None


def _counted(receive: Receive, limit: int) -> Receive:
    """Count the bytes of a body as they come: a length need not be said, or true."""
    count = 0

    async def receive_counted() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limit:
            raise HTTPException(413, _too_long(limit))
        return message

    return receive_counted


def _too_long(limit: int) -> str:
    return f"the body has more than {limit} bytes"


def _too_fast(wait_s: float) -> ASGIApp:
    headers = {"Retry-After": str(math.ceil(wait_s))}
    fix = "wait as long as Retry-After says, or raise BOREAL_API__REQUESTS_PER_S or BOREAL_API__OPEN_REQUESTS"
    return problem(429, "this token makes too many requests", field="Authorization", fix=fix, headers=headers)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


def _host_name(host: str) -> str:
    """The name in a Host header, without its port, and without the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _place_of(origin: str) -> str | None:
    """The host and port of an origin; None where it has none, such as `null`."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
