"""The rate of dead letters."""

from __future__ import annotations

from intake.letter_rate import LetterRate

SECOND = 1_000_000


def test_letters_count_for_a_minute() -> None:
    rate = LetterRate()
    assert rate.per_minute(0) == 0
    rate.note(2, 10 * SECOND)
    rate.note(3, 10 * SECOND + 999_999)
    rate.note(1, 40 * SECOND)
    assert rate.per_minute(40 * SECOND) == 6 and rate.per_minute(69 * SECOND) == 6
    assert rate.per_minute(70 * SECOND) == 1 and rate.per_minute(100 * SECOND) == 0
    rate.note(4, 130 * SECOND)
    assert rate.per_minute(130 * SECOND) == 4, "not what was in the same place of the minute before"
