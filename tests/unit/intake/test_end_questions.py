"""One request for all that is asked at a tick, and what its answers are good for."""

from __future__ import annotations

from intake.end_questions import (
    ASK_SILENT_AGAIN_US,
    PATIENCE_MS,
    SILENT_PATIENCE_MS,
    EndQuestions,
    EndRequest,
    Place,
)

A, B, C = ("a", 0), ("b", 0), ("c", 0)
TICK = 100_000


def answered(questions: EndQuestions, *places: Place, since: int, now: int, ends: dict[Place, int] | None) -> EndRequest:
    """Ask, and answer the request that follows."""
    request = questions.ask(places, since, now)
    assert isinstance(request, EndRequest), request
    questions.finish(ends, now + 1)
    return request


def test_who_asks_first_at_a_tick_asks_for_all_and_the_others_find_the_answers() -> None:
    questions = EndQuestions()
    for tick in (TICK, 2 * TICK):
        for place in (A, B):
            answered(questions, place, since=tick, now=tick, ends={place: 1})
    request = answered(questions, B, since=3 * TICK, now=3 * TICK + 5, ends={A: 7, B: 8})
    assert sorted(request.places) == [A, B]
    assert questions.ask([A], 3 * TICK, 3 * TICK + 9) == {A: 7}
    assert questions.ask([B], 3 * TICK, 3 * TICK + 9) == {B: 8}


def test_an_answer_counts_only_if_its_request_was_sent_after_the_question() -> None:
    questions = EndQuestions()
    answered(questions, A, since=10, now=10, ends={A: 1})
    assert questions.ask([A], 10, 20) == {A: 1}
    assert isinstance(questions.ask([A], 11, 20), EndRequest), "what was written at 10 might be missing"
    assert questions.ask([A], 20, 21) is None, "wait for the request that is on its way"
    assert questions.ask([A], 21, 22) is None
    questions.finish({A: 2}, 25)
    assert questions.ask([A], 20, 26) == {A: 2}
    assert isinstance(questions.ask([A], 21, 26), EndRequest), "that request was sent at 20"


def test_a_partition_that_the_leader_does_not_know_costs_the_others_nothing() -> None:
    questions = EndQuestions()
    answered(questions, A, B, since=10, now=10, ends={A: 1})
    assert questions.ask([A, B], 10, 11) == {A: 1}
    assert questions.ask([B], 10, 11) == {}


def test_a_silent_leader_is_asked_seldom_and_briefly() -> None:
    questions = EndQuestions()
    assert answered(questions, A, since=10, now=10, ends=None).patience_ms == PATIENCE_MS
    again_at = 11 + ASK_SILENT_AGAIN_US
    assert questions.ask([A], 10, 12) == {}, "nor is it asked again by those that have waited"
    assert questions.ask([A], again_at - 1, again_at - 1) == {}
    assert answered(questions, A, since=again_at, now=again_at, ends=None).patience_ms == SILENT_PATIENCE_MS
    again_at += 1 + ASK_SILENT_AGAIN_US
    assert answered(questions, A, since=again_at, now=again_at, ends={A: 3}).patience_ms == SILENT_PATIENCE_MS
    assert answered(questions, A, since=again_at + 1, now=again_at + 1, ends={A: 3}).patience_ms == PATIENCE_MS


def test_only_what_is_due_is_asked_with_others_and_not_what_nobody_asks_for_any_more() -> None:
    questions = EndQuestions()
    for tick in (0, 1, 2, 3, 4):
        answered(questions, A, since=tick * TICK, now=tick * TICK, ends={A: 1})
        if not tick % 4:
            answered(questions, B, since=tick * TICK + 1, now=tick * TICK + 1, ends={B: 1})
    due = [answered(questions, A, since=tick * TICK, now=tick * TICK, ends={A: 1}).places for tick in range(5, 25)]
    assert [tick for tick, places in enumerate(due, 5) if B in places] == [*range(9, 17)], "from its interval on, for two more"
    answered(questions, C, since=25 * TICK, now=25 * TICK, ends={C: 1})
