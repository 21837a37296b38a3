"""Who stands still with no good reason."""

from __future__ import annotations

from deployment.stalls import Stall, StallDetector, StallEnd
from reconcile.events import InstanceId

SECOND = 1_000_000
LIMIT = 10 * SECOND
WHO = InstanceId("main", "r0", 0)


def run(progress: StallDetector, seconds: range, position, inputs) -> list:
    """Observe once a second; position and each input are functions of the second."""
    return [
        (second, effect)
        for second in seconds
        for effect in progress.observe(
            WHO, position(second), {name: place(second) for name, place in inputs.items()}, second * SECOND
        )
    ]


def still(second: int) -> int:
    return 0


def going(second: int) -> int:
    return second


def unknown(second: int) -> None:
    return None


def test_an_instance_whose_inputs_all_go_on_has_stalled_after_the_limit():
    progress = StallDetector(LIMIT)
    assert run(progress, range(30), still, {"jfk": going, "lga": going}) == [(12, Stall(WHO, 0))]
    assert progress.stalled == [WHO]
    assert run(progress, range(30, 31), going, {"jfk": going, "lga": going}) == [(30, StallEnd(WHO))]
    assert progress.stalled == []


def test_one_that_moves_or_has_nothing_to_do_has_not():
    progress = StallDetector(LIMIT)
    assert run(progress, range(60), going, {"jfk": going}) == []
    assert run(progress, range(60, 120), still, {"jfk": still}) == []
    assert run(progress, range(120, 180), still, {}) == []


def test_one_that_waits_for_a_dead_or_unknown_input_has_not():
    assert run(StallDetector(LIMIT), range(60), still, {"jfk": going, "lga": still}) == []
    assert run(StallDetector(LIMIT), range(60), still, {"jfk": going, "lga": unknown}) == []


def test_an_input_that_heals_gives_the_instance_the_whole_limit_to_follow():
    progress = StallDetector(LIMIT)

    def healing(second: int) -> int:
        return max(second - 60, 0)

    assert run(progress, range(60), still, {"jfk": going, "lga": healing}) == []
    assert run(progress, range(60, 100), still, {"jfk": going, "lga": healing}) == [(72, Stall(WHO, 0))]


def test_an_input_that_comes_to_be_known_late_has_not_moved_by_that():
    progress = StallDetector(LIMIT)
    run(progress, range(60), still, {"jfk": going, "lga": unknown})
    assert run(progress, range(60, 100), still, {"jfk": going, "lga": still}) == []


def test_an_input_that_is_now_and_then_unknown_has_not_moved_by_that():
    progress = StallDetector(LIMIT)
    assert run(progress, range(60), still, {"jfk": lambda second: 5 if second % 2 else None}) == []


def test_one_that_was_silent_is_judged_anew():
    progress = StallDetector(LIMIT)
    run(progress, range(30), still, {"jfk": going})
    progress.forget(WHO)
    assert progress.stalled == []
    assert run(progress, range(30, 40), still, {"jfk": going}) == []
