"""The OpenAPI document is true: what it allows and what it forbids is answered as it says, and nothing fails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import coverage_scenario
from schemathesis.specs.openapi import checks
from starlette.testclient import TestClient

from api import create_app, models
from api.dashboard import add_dashboard
from api.examples import EXAMPLES
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.openapi import REQUESTS
from api.settings import ApiSettings
from api.tokens import TokenStore
from tests.thoroughness import IS_THOROUGH, some
from tests.unit.api.conftest import ADDRESS, IDLE
from tests.unit.api.memory import MemoryInstallation

CASES = some(25, 15)
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.unsupported_method,
    checks.allow_header_conformance,
    checks.ignored_auth,
]
"""Not that all that fits the schema is accepted: a query has rules that no JSON Schema says."""
TOKEN = {"Authorization": "Bearer ours"}
ENDLESS = r"/(output|stream)$"
"""Streams of events have no end; tests of their own read them. The lazy schema leaves them out: if the document did,
that would be lost."""
QUERY_IN_FULL = "PUT /api/v1/queries/{name}"
"""Several routes take a query as their body, and read it by the same code. This one gets all bodies, right and wrong, that the
schema gives, some 900, every third of them in `make test`; each of the others gets one of each sort."""
NTH_IN_FULL = 1 if IS_THOROUGH else 3


def one_body_of_each_sort(document: dict[str, Any]) -> Callable[[schemathesis.HookContext, schemathesis.Case], bool]:
    """Whether a generated case is sent: see QUERY_IN_FULL."""
    operations = ((method, path, op) for path, ops in document["paths"].items() for method, op in ops.items())
    take_query = {f"{method.upper()} {path}" for method, path, op in operations if _body(op).endswith("/Query")}
    assert QUERY_IN_FULL in take_query
    sent: set[tuple[object, ...]] = set()
    in_full = count()

    def is_sent(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
        label = case.operation.label
        sort = coverage_scenario(case)
        if sort is None or label not in take_query:
            return True
        if label == QUERY_IN_FULL:
            return next(in_full) % NTH_IN_FULL == 0
        assert case.meta is not None
        varied = case.meta.phase.data
        if varied.parameter_location != ParameterLocation.BODY:
            return True
        key = (label, sort, varied.parameter)
        is_first = key not in sent
        sent.add(key)
        return is_first

    return is_sent


def _body(operation: dict[str, Any]) -> str:
    """The reference to the schema of its JSON body; "" if it has none."""
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("schema", {}).get("$ref", "")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory):
    data = tmp_path_factory.mktemp("data")
    jobs = Jobs(data / "jobs", command=IDLE)
    app = create_app(ApiSettings(allow_chaos=True), MemoryInstallation(), TokenStore(data, "ours"), jobs)
    add_dashboard(app, data)
    client = TestClient(app, base_url=ADDRESS, headers=TOKEN)
    client.put("/api/v1/queries/departures", json=EXAMPLE_SPEC).raise_for_status()
    said = client.get("/api/v1/openapi.json").json()
    made = schemathesis.openapi.from_dict(said)
    made.hook("filter_case")(one_body_of_each_sort(said))
    made.app = app
    yield made
    jobs.close()


described = schemathesis.pytest.from_fixture("document").exclude(path_regex=ENDLESS)


@described.parametrize()
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_route_answers_as_the_document_says(case: schemathesis.Case) -> None:
    answer = case.call(base_url=ADDRESS, headers=TOKEN)
    case.validate_response(answer, checks=CHECKS, headers=TOKEN)
    assert answer.status_code < 500 or (answer.status_code == 503 and "retry-after" in answer.headers)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == ["application/problem+json"] and answer.json()["detail"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_answers_that_could_be(name: str) -> None:
    model = getattr(models, name)
    told = model.model_validate(EXAMPLES[name]).model_dump(by_alias=True, exclude_unset=True)
    assert told == EXAMPLES[name]
    lacking = {field.alias or each for each, field in model.model_fields.items()} - told.keys()
    assert all(not model.model_fields[each].is_required() for each in lacking)


def test_what_bodies_and_answers_are_is_said_in_full(document) -> None:
    said = document.raw_schema
    schemas = said["components"]["schemas"]
    for path, operations in said["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body:
                assert body["$ref"].rpartition("/")[2] in {"Query", *(each.__name__ for each in REQUESTS)}, path
            for status, answer in operation["responses"].items():
                if status.startswith("2") and status != "204":
                    assert answer["content"], f"{method} {path} {status}"
                    told = answer["content"].get("application/json")
                    assert told is None or told["schema"].get("type") != "object", f"{method} {path} {status}"
    for path in ("/api/v1/queries/{name}/output", "/api/v1/events/stream"):
        assert list(said["paths"][path]["get"]["responses"]["200"]["content"]) == ["text/event-stream"]
    assert {"200", "201"} <= said["paths"]["/api/v1/queries/{name}"]["put"]["responses"].keys()
    shown = said["paths"]["/api/v1/queries/{name}"]["get"]["responses"]["200"]
    assert shown["content"]["application/json"]["example"] == EXAMPLES["QueryAnswer"]
    assert {"Boreal-As-Of-Ms", "Boreal-Stale"} == shown["headers"].keys()
    assert schemas["Query"]["properties"]["tuning"]["$ref"] == "#/components/schemas/Tuning" and "Tuning" in schemas
