"""Delays of new rows, as the status of a query shows them."""

from __future__ import annotations

import numpy as np

from deployment.delay_window import KEPT_US
from services.egress.delays import RecentDelays


def test_what_took_longer_than_x_is_counted_for_good() -> None:
    """The figures are of the last minute; violations are of all time."""
    delays = RecentDelays(1_000)
    delays.add(0, np.array([500, 1_000, 1_001, 4_000]))
    assert delays.violations == 2
    assert delays.summary_ms(KEPT_US)["max"] == 4.0
    assert delays.summary_ms(KEPT_US + 1) == {"p50": None, "p99": None, "max": None}
    delays.add(KEPT_US + 2, np.array([700]))
    assert delays.summary_ms(KEPT_US + 2)["max"] == 0.7
    assert delays.violations == 2
