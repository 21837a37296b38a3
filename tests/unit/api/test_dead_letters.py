"""Dead letters over REST."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import create_app
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.settings import ApiSettings
from api.tokens import Role, TokenStore
from formats.dead_letter import PUT_BACK_BEFORE, DeadLetterRecord, KeptLetter, LetterChoice
from tests.unit.api.conftest import ADDRESS
from tests.unit.api.memory import MemoryInstallation
from tests.unit.api.test_queries import problem

PATH = "/api/v1/queries/departures/dead-letters"


@pytest.fixture(autouse=True)
def letters(installation: MemoryInstallation) -> None:
    late = DeadLetterRecord("jfk", "flights.jfk", 2, 7, "late by 1s, disorder allows 0s", '{"carrier": "AA"}')
    broken = DeadLetterRecord("jfk", "flights.jfk", 0, 3, "column dep_delay: 'x' is not a double", '{"dep_delay": "x"}')
    installation.letters = [KeptLetter("a:9", 2_000.0, late), KeptLetter("a:4", 1_000.0, broken, replayed=True)]


def test_the_newest_are_listed_by_choice(admin: TestClient, query: dict[str, Any]) -> None:
    listed = admin.get(PATH).json()
    assert listed["dead_letters"][0] == {
        "id": "a:9",
        "at_ms": 2_000.0,
        "stream": "jfk",
        "topic": "flights.jfk",
        "partition": 2,
        "offset": 7,
        "reason": "late by 1s, disorder allows 0s",
        "record": '{"carrier": "AA"}',
        "replayed": False,
    }
    assert listed["looked_back_to_ms"] is None

    def ids(**choice: Any) -> list[str]:
        return [each["id"] for each in admin.get(PATH, params=choice).json()["dead_letters"]]

    assert ids() == ["a:9", "a:4"] and ids(limit=1) == ["a:9"]
    assert ids(reason="not a double") == ["a:4"] and ids(since_ms=1_500) == ["a:9"]
    assert ids(stream="jfk", reason="nothing") == []


def test_they_are_put_back_by_choice_in_the_name_of_the_caller(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation
) -> None:
    answer = admin.post(f"{PATH}/replay", json={"stream": "jfk", "reason": "late", "limit": 5})
    assert answer.status_code == 202
    left = [{"reason": PUT_BACK_BEFORE, "letters": 1}]
    assert answer.json() == {"query": "departures", "replayed": 2, "left": left}
    assert installation.replays == [(LetterChoice("jfk", "late", None), 5, "admin (admin)")]
    assert admin.post(f"{PATH}/replay", json={}).status_code == 202
    assert installation.replays[1][:2] == (LetterChoice(), 1_000)


def test_what_is_wrong_is_refused_and_nothing_is_put_back(
    admin: TestClient, query: dict[str, Any], installation: MemoryInstallation
) -> None:
    problem(admin.get(PATH, params={"stream": "jfx"}), 422, "stream")
    problem(admin.get(PATH.replace("departures", "none")), 404, "NAME")
    problem(admin.get(PATH, params={"limit": 0}), 422, "limit")
    replay = f"{PATH}/replay"
    problem(admin.post(replay, json={"stream": "jfx"}), 422, "stream")
    problem(admin.post(replay, json={"streams": "jfk"}), 422, "streams")
    problem(admin.post(replay, json={"limit": 10_001}), 422, "limit")
    problem(admin.post(replay.replace("departures", "none"), json={}), 404, "NAME")
    assert not installation.replays
    installation.is_away = True
    problem(admin.post(replay, json={}), 503)


def test_where_rows_are_not_shown_neither_are_letters_nor_reasons_that_quote_them(
    tokens: TokenStore, installation: MemoryInstallation, jobs: Jobs
) -> None:
    app = create_app(ApiSettings(show_rows=False), installation, tokens, jobs)
    _, token = tokens.create("ours", [Role.ADMIN])
    caller = TestClient(app, base_url=ADDRESS, headers={"Authorization": f"Bearer {token}"})
    assert caller.put("/api/v1/queries/departures", json=EXAMPLE_SPEC).status_code == 201
    first = caller.get(PATH).json()["dead_letters"][0]
    assert first["record"] is None and first["reason"] is None and first["offset"] == 7
    problem(caller.get(PATH, params={"reason": "AA"}), 403, "reason")
