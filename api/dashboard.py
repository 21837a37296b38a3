"""The dashboard: pages from the package, and the cookie by which a browser says its token.

The link that `boreal up` prints has the token after its #, which no server and no log sees. The page sends it once, as a bearer
token, and gets a cookie that no script can read. From then on the cookie stands for the header; `api.gate` refuses requests of
other origins, whatever they carry.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.responses import FileResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from api.dependencies import SettingsOf
from api.models import MayDo, SessionAnswer
from api.problems import problem
from api.tokens import Caller, Role

STATIC = Path(__file__).parent / "static"
KEPT_S = 30 * 86_400

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}

router = APIRouter(tags=["dashboard"])


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """The page. It is asked for each time, so that a new version shows at once."""
    return _file("index.html", request)


@router.get("/static/{name}", include_in_schema=False)
async def static(name: str, request: Request) -> Response:
    if not (STATIC / name).is_file() or (STATIC / name).suffix not in _TYPES or "/" in name:
        answer: Response = problem(404, "there is no such file", field="path", value=name, fix="reload the page")
        return answer
    return _file(name, request)


def _file(name: str, request: Request) -> Response:
    """A file of the package, compressed where the caller takes that."""
    path, media_type = STATIC / name, _TYPES[Path(name).suffix]
    headers = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(path, media_type=media_type, headers=headers)
    content = _compressed(path, path.stat().st_mtime_ns)
    return Response(content, media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})


@lru_cache(64)
def _compressed(path: Path, mtime_ns: int) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0)


@router.get("/api/v1/session")
async def session(request: Request, settings: SettingsOf) -> SessionAnswer:
    """Who the caller is, what it may do here, and whether rows are shown."""
    caller: Caller = request.state.caller
    may = {role.value: caller.may(role) for role in Role}
    may["chaos"] = may["chaos"] and settings.allow_chaos
    return SessionAnswer(name=caller.name, may=MayDo.model_validate(may), shows_rows=settings.show_rows)


@router.post("/api/v1/session")
async def begin_session(request: Request, response: Response, settings: SettingsOf) -> SessionAnswer:
    """Keep the token of this request in a cookie, for a browser. Answers as `GET`."""
    name: str = request.app.state.cookie
    token = request.headers["authorization"].partition(" ")[2].strip()
    secure = request.url.scheme == "https"
    response.set_cookie(name, token, max_age=KEPT_S, httponly=True, samesite="strict", secure=secure, path="/")
    return await session(request, settings)


@router.delete("/api/v1/session", status_code=204)
async def end_session(request: Request, response: Response) -> None:
    """Forget the cookie."""
    response.delete_cookie(request.app.state.cookie, path="/")


class CookieAsToken:
    """Middleware: a request without a token of its own has the one of its cookie."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app = app
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            token = _cookie(headers.get("cookie", ""), self._name)
            if token and "authorization" not in headers:
                scope = {**scope, "headers": [*scope["headers"], (b"authorization", f"Bearer {token}".encode("latin-1"))]}
        await self._app(scope, receive, send)


def _cookie(header: str, name: str) -> str | None:
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return morsel.value if morsel is not None else None


def add_dashboard(app: FastAPI, data: Path) -> None:
    """Add the pages to the API of the installation in `data`, whose name is part of the cookie's: ports of one machine share
    their cookies."""
    app.state.cookie = f"boreal_{hashlib.sha256(str(data.absolute()).encode()).hexdigest()[:12]}"
    app.include_router(router)
    app.add_middleware(CookieAsToken, name=app.state.cookie)
