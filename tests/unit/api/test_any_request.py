"""Whatever is asked, no route fails, and every refusal is a problem document."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.models import EXAMPLE_SPEC
from tests.thoroughness import some
from tests.unit.api.test_access import routes

ROUTES = [(method, path) for method, path, _ in routes() if not (method == "GET" and path.endswith(("/output", "/stream")))]
"""The stream of events has no end."""
TEXT = st.text(max_size=9)
WORDS = st.sampled_from(["departures", "departures.jfk", "jfk", "a/b", "..", "%", "a b", "\x00", "x" * 300, "-1"]) | TEXT
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXT, each, max_size=3), max_leaves=8)
FIELDS = st.dictionaries(st.sampled_from([*EXAMPLE_SPEC, "tuning", "policy", "reconcile", "fault"]), VALUES, max_size=3)
BODIES = VALUES | FIELDS | FIELDS.map(lambda fields: {**EXAMPLE_SPEC, **fields})
TAGS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12) | st.just('"departures-1"')
HEADERS = st.dictionaries(st.sampled_from(["If-Match", "If-None-Match", "Last-Event-ID"]), TAGS, max_size=2)
PARAMETERS = st.dictionaries(st.sampled_from(["expand", "limit", "after", "min_revision", "only_failed"]), WORDS, max_size=2)


@settings(max_examples=some(400, 8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(route=st.sampled_from(ROUTES), word=WORDS, body=BODIES, headers=HEADERS, parameters=PARAMETERS)
def test_any_request_is_answered_or_refused_with_a_problem(
    admin: TestClient, route: tuple[str, str], word: str, body: Any, headers: dict[str, str], parameters: dict[str, str]
) -> None:
    admin.put("/api/v1/queries/departures", json=EXAMPLE_SPEC)
    method, path = route
    path = path.replace("{name}", quote(word, safe=""))
    answer = admin.request(method, path, json=body, headers=headers, params=parameters, follow_redirects=False)
    assert answer.status_code < 500 or answer.headers.get("retry-after"), answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        found = answer.json()
        assert found["status"] == answer.status_code and found["detail"] and "fix" in found and "field" in found
