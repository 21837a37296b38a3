"""How long instances and sources without rows may be silent, where roles run on a stack (R24)."""

from __future__ import annotations

import pytest

from boreal.query.plan import pause_to_say
from boreal.query.spec import load_query
from deployment.layout import make_layout
from tests.harness import query_of


@pytest.mark.parametrize(("threshold_ms", "calm_ms"), [(500, 50), (1_000, 250), (1_999, 250), (2_000, 500), (60_000, 500)])
def test_the_longer_x_is_the_less_often_calm_roles_are_heard(threshold_ms: int, calm_ms: int) -> None:
    """At moments that all calm roles have in common. Whoever is silent for too long is missed well within X."""
    plan = make_layout(load_query({**query_of(x=f"{threshold_ms}ms"), "tuning": {}}), ("a",)).plan
    assert plan.calm_interval_us == calm_ms * 1_000
    said_us = pause_to_say(plan.calm_pause_us, plan.calm_interval_us)
    assert plan.silence_us + said_us <= 0.75 * threshold_ms * 1_000
