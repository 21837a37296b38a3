"""How often the egresses of one process commit."""

from __future__ import annotations

import pytest

from services.hosting.commits import CommitPace


@pytest.mark.parametrize(
    ("degree", "writers", "interval_s"),
    [(0, 1, 0.05), (0, 20, 0.05), (1, 1, 0.05), (1, 4, 0.35), (1, 40, 0.5), (2, 4, 0.35), (2, 40, 1.0)],
)
def test_many_writers_of_a_process_with_much_to_do_commit_seldom(degree: int, writers: int, interval_s: float) -> None:
    pace = CommitPace(lambda: degree)
    assert pace.interval_s == 0.05, "nobody has joined"
    for _ in range(writers + 1):
        pace.join()
    pace.leave()
    assert pace.interval_s == pytest.approx(interval_s)
