"""The operations on queries through the REST API of an installation: the same ones, with the same errors, as over Kafka."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from boreal.api_client import ApiClient, ApiError
from boreal.model.errors import UserError
from boreal.query.spec import Query
from deployment.liveness import Liveness
from deployment.query_record import QueryRecord
from deployment.status_fields import answers_of, shown_stream

SERVES_WITHIN_S = 2.0
LONGEST_CALL_S = 600.0
"""A query is deleted when its processes have ended and its topics are gone."""
_LOOK_S = 0.1


class ApiOperations:
    """See `services.stack.operations.Operations`, of which these are the operations on queries. UserError for what the API
    refuses, or where it does not answer."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._api = ApiClient(address, token, timeout_s=LONGEST_CALL_S)

    def close(self) -> None:
        self._api.close()

    def queries(self) -> dict[str, QueryRecord]:
        return {answer["name"]: _record(answer) for answer in self._call(self._api.queries)}

    def query(self, name: str) -> QueryRecord:
        return _record(self._call(lambda: self._api.query(name)))

    def apply(self, query: Query) -> QueryRecord:
        return _record(self._call(lambda: self._api.put(query.dump())))

    def validate(self, query: Query, start: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call(lambda: self._api.validate(query.dump(), start=start))
        return {field: found[field] for field in ("valid", "notes", "change")}

    def set(self, name: str, changes: Mapping[str, object]) -> QueryRecord:
        return _record(self._call(lambda: self._api.call("PATCH", f"/queries/{quote(name, safe='')}", changes)))

    def pause(self, name: str, paused: bool) -> QueryRecord:
        self._call(lambda: self._api.pause(name) if paused else self._api.resume(name))
        return self.query(name)

    def evolve(self, query: Query, start: str) -> QueryRecord:
        return _record(self._call(lambda: self._api.evolve(query.dump(), start=start)))

    def roll_back(self, name: str, on_wait: Callable[[Collection[str]], None]) -> QueryRecord:
        return _record(self._call(lambda: self._api.roll_back(name)))

    def settle(self, name: str, on_wait: Callable[[Collection[str]], None]) -> QueryRecord:
        return _record(self._call(lambda: self._api.settle(name)))

    def evolution(self, record: QueryRecord) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._call(lambda: self._api.evolution(record.name))
        return found

    def delete(self, name: str, on_wait: Callable[[Collection[str]], None]) -> None:
        self.query(name)  # one that does not exist has no end to wait for
        on_wait([name])
        self._call(lambda: self._api.delete(name))

    def liveness(self, record: QueryRecord) -> Liveness:
        found = self._call(lambda: self._api.liveness(record.name, min_revision=record.revision))
        return Liveness(
            found["live"], tuple(found["waits_for"]), found["states"], tuple(found["missing_inputs"]), found["problem"],
            found["least_x_ms"],
        )  # fmt: skip

    def await_ended(self, name: str, on_wait: Callable[[Collection[str]], None]) -> None:
        while running := self._call(lambda: self._api.liveness(name))["running"]:
            on_wait(running)
            time.sleep(_LOOK_S)

    def fault(self, text: str) -> dict[str, Any]:
        """Begin a fault, such as `cut jfk for 10s`: its id, its text with the query's name, its processes and its end."""
        found: dict[str, Any] = self._call(lambda: self._api.chaos(text))
        return found

    def failures(self, name: str, limit: int) -> dict[str, Any]:
        """The newest failures of a query."""
        found: dict[str, Any] = self._call(lambda: self._api.failures(name, limit=limit))
        return found

    def failure(self, name: str, id_: str) -> dict[str, Any]:
        """A failure in full."""
        found: dict[str, Any] = self._call(lambda: self._api.failure(name, id_))
        return found

    def dead_letters(self, name: str, limit: int, **choice: Any) -> dict[str, Any]:
        """The newest dead letters of a query."""
        found: dict[str, Any] = self._call(lambda: self._api.dead_letters(name, limit=limit, **choice))
        return found

    def replay_dead_letters(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put the records of dead letters back."""
        found: dict[str, Any] = self._call(lambda: self._api.replay_dead_letters(name, request))
        return found

    def readers(self) -> list[dict[str, Any]]:
        """What the queries read: where the records are, and who reads them."""
        found: list[dict[str, Any]] = self._call(self._api.streams)
        return found

    def streams(self, name: str) -> dict[str, dict[str, Any]]:
        inputs = self._call(lambda: self._api.status(name))["inputs"]
        return {said["name"]: shown_stream(said) for said in inputs}

    def answers(self, name: str) -> dict[str, Any]:
        return answers_of(self._call(lambda: self._api.status(name)))

    def events(self, query: str | None, kinds: Collection[str], limit: int) -> dict[str, Any]:
        """The newest events."""
        found: dict[str, Any] = self._call(lambda: self._api.events(query=query, kinds=kinds, limit=limit))
        return found

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ApiError as error:
            raise _refusal(error) from None
        except OSError as error:
            problem = f"does not answer: {error}"
            raise UserError("API", self.address, problem, "see boreal status; what was asked for may have been done") from None


def api_of(data: Path) -> ApiOperations | None:
    """The operations through the API of the installation that runs in a directory; None where none answers."""
    from services.stack.description import StackDescription
    from services.stack.state import living, read_state

    state, stack = read_state(data), StackDescription(data)  # an embedded one has the same files
    if state is None or living(state["supervisor"]) is None or stack.token is None:
        return None
    try:
        with urllib.request.urlopen(f"{stack.api}/healthz", timeout=SERVES_WITHIN_S):
            return ApiOperations(stack.api, stack.token)
    except OSError:
        return None


@contextmanager
def reached_api(data: Path | None, start: str = "boreal up") -> Iterator[ApiOperations]:
    """The API of the installation in a directory, by default the user's own. UserError if none answers. start: the command that
    starts one."""
    from services.stack.state import default_data

    directory = (data or default_data()).absolute()
    api = api_of(directory)
    if api is None:
        fix = f"start it with {start}, or name its directory with --data"
        raise UserError("--data", str(directory), "has no installation that runs", fix)
    with closing(api):
        yield api


def _record(answer: Mapping[str, Any]) -> QueryRecord:
    version = answer.get("version", 1)
    return QueryRecord(answer["name"], dict(answer["spec"]), answer["revision"], answer["paused"], version=version)


def _refusal(error: ApiError) -> UserError:
    """The error that the API's own operation has raised."""
    field = error.field or "API"
    return UserError(field, error.value, error.detail.removeprefix(f"{field}: "), error.fix or "see boreal status")
