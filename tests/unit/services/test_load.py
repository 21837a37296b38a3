"""A process gathers what can wait while it, or its machine, has much to do; and no longer."""

from __future__ import annotations

import pytest

from services.kafka import load as load_module
from services.kafka.load import CALM_FACTOR, DEGREES, MACHINE_SHARE, OWN_SHARE, SAMPLE_S, Load, LoadGauge


def test_a_process_or_a_machine_with_much_to_do_is_loaded() -> None:
    idle, own, machine = LoadGauge(), LoadGauge(), LoadGauge()
    idle.note(OWN_SHARE - 0.01, MACHINE_SHARE - 0.01)
    own.note(OWN_SHARE, 0.0)
    machine.note(0.0, MACHINE_SHARE)
    assert (idle.degree, own.degree, machine.degree) == (0, 1, 1)


def test_with_even_more_to_do_it_is_loaded_to_the_second_degree() -> None:
    gauge = LoadGauge()
    gauge.note(0.0, DEGREES[1] * MACHINE_SHARE)
    assert gauge.degree == 2
    gauge.note(0.0, CALM_FACTOR * DEGREES[1] * MACHINE_SHARE)
    assert gauge.degree == 2
    gauge.note(0.0, CALM_FACTOR * DEGREES[1] * MACHINE_SHARE - 0.01)
    assert gauge.degree == 1
    gauge.note(0.0, 0.0)
    assert gauge.degree == 0


def test_what_gathering_saves_does_not_end_it() -> None:
    gauge = LoadGauge()
    gauge.note(OWN_SHARE, 0.0)
    gauge.note(CALM_FACTOR * OWN_SHARE, 0.0)
    assert gauge.degree == 1
    gauge.note(CALM_FACTOR * OWN_SHARE - 0.01, CALM_FACTOR * MACHINE_SHARE)
    assert gauge.degree == 1, "the machine still has much to do"
    gauge.note(CALM_FACTOR * OWN_SHARE - 0.01, 0.0)
    assert gauge.degree == 0


def test_the_load_is_measured_when_it_is_asked_for_and_not_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = 0.0, (0.0, 0.0)
    monkeypatch.setattr(load_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(load_module, "used_seconds", lambda: used)
    switches: list[float] = []
    monkeypatch.setattr(load_module.sys, "setswitchinterval", switches.append)
    load = Load()
    now, used = SAMPLE_S / 2, (SAMPLE_S, 0.0)
    assert load.degree() == 0
    now = SAMPLE_S
    assert load.degree() == 2
    now = 10 * SAMPLE_S
    assert load.degree() == 0, "nothing was used since"
    assert switches == [0.0005, 0.005, 0.0005], "each thread runs for longer while the process is loaded"


def test_threads_of_a_loaded_process_run_for_longer_only_where_many_logs_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    now, is_crowded, switches = 0.0, False, list[float]()
    monkeypatch.setattr(load_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(load_module, "used_seconds", lambda: (now, now))
    monkeypatch.setattr(load_module.sys, "setswitchinterval", switches.append)
    load = Load(lambda: is_crowded)
    now = SAMPLE_S
    assert load.degree() == 2
    now, is_crowded = 2 * SAMPLE_S, True
    assert load.degree() == 2
    assert switches == [0.0005, 0.0005, 0.005]


def test_what_a_machine_has_used_grows_with_its_work() -> None:
    own_s, busy_s = load_module.used_seconds()
    assert sum(range(1_000_000)) > 0
    later_own_s, later_busy_s = load_module.used_seconds()
    assert later_own_s > own_s and later_busy_s >= busy_s
