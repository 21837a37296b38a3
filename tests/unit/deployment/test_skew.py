"""Whose clock is warned of."""

from __future__ import annotations

from typing import Any

from deployment.skew import clock_warnings


def node(replica: str, alpha_ms: float, *skews_ms: float, error_ms: float | None = 0.0) -> dict[str, Any]:
    inputs = [{"name": f"s{number}/0", "skew_ms": skew} for number, skew in enumerate(skews_ms)]
    entry = {"alpha_x_ms": alpha_ms, "inputs": inputs}
    return {"process": f"node.q.{replica}", "clock_error_ms": error_ms, "instances": [entry]}


def source(error_ms: float | None) -> dict[str, Any]:
    return {"process": "source.q.jfk", "clock_error_ms": error_ms}


def by_name(*statuses: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {status["process"]: status for status in statuses}


def warned(*statuses: dict[str, Any]) -> list[tuple[str, float]]:
    return [(warning["process"], warning["skew_ms"]) for warning in clock_warnings(by_name(*statuses))]


def test_right_clocks_and_those_that_cannot_tell_are_not_warned_of() -> None:
    assert not warned(node("r0", 850.0, 0.0, 0.0), node("r1", 850.0, error_ms=None), source(None), source(1.0))
    assert not warned()


def test_skew_that_was_seen_is_warned_of_from_a_quarter_of_what_right_clocks_would_leave() -> None:
    assert not warned(node("r0", 750.0, 0.0, 250.0))
    assert warned(node("r1", 740.0, 0.0, 260.0), node("r0", 1_000.0, 0.0)) == [("node.q.r1", 260.0)]


def test_a_clock_that_is_being_made_right_is_warned_of_by_the_least_alpha_x_of_the_query() -> None:
    assert warned(node("r0", 800.0), source(-201.0)) == [("source.q.jfk", 201.0)]
    assert not warned(node("r0", 800.0), source(199.0))
    assert not warned(source(9_000.0)), "nobody waits, as far as is known"


def test_queries_do_not_answer_for_each_other() -> None:
    assert not warned({**node("r0", 10.0), "process": "node.other.r0"}, node("r0", 800.0), source(100.0))


def test_the_text_says_how_far_what_it_costs_and_what_to_do() -> None:
    [seen] = clock_warnings(by_name(node("r0", 500.0, 1_500.0)))
    assert "1,500 ms behind" in seen["text"] and "leaves 500 ms" in seen["text"] and "chrony" in seen["text"]
    [left] = clock_warnings(by_name(node("r0", 500.0, error_ms=2_000.0)))
    assert "2,000 ms ahead" in left["text"] and "within 20 s" in left["text"]


def test_an_egress_says_for_itself() -> None:
    egress = {"process": "egress.q.a", "alpha_x_ms": 100.0, "skew_ms": 400.0, "clock_error_ms": None}
    assert warned(egress) == [("egress.q.a", 400.0)]
