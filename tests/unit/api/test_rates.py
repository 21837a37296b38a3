"""How fast a token may call."""

from __future__ import annotations

from api.rates import FORGET_EVERY, Rates


def test_two_seconds_worth_may_come_at_once_and_then_the_rate_holds() -> None:
    rates = Rates(10, 1_000)
    assert [rates.begin("a", 5.0) for _ in range(20)] == [0.0] * 20
    assert abs(rates.begin("a", 5.0) - 0.1) < 1e-9
    assert rates.begin("b", 5.0) == 0
    assert rates.begin("a", 5.11) == 0 and rates.begin("a", 5.11) > 0
    assert [rates.begin("a", 100.0) for _ in range(21)].count(0.0) == 20


def test_so_many_may_be_open_at_the_same_time() -> None:
    rates = Rates(0, 2)
    assert (rates.begin("a", 0), rates.begin("a", 0), rates.begin("a", 0), rates.begin("b", 0)) == (0, 0, 1, 0)
    rates.end("a")
    assert rates.begin("a", 0) == 0


def test_callers_that_are_quiet_are_forgotten() -> None:
    rates = Rates(10, 10)
    for number in range(3 * FORGET_EVERY):
        assert rates.begin(f"caller-{number}", number) == 0
        rates.end(f"caller-{number}")
    assert len(rates._buckets) + len(rates._open) < 10
