"""Spans of corrections: by the SDK's exporter in memory, and at a receiver of OTLP."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from boreal.model.errors import UserError
from boreal.model.frames import State
from deployment.corrections import Correction, CorrectionHistory
from reconcile.events import InstanceId
from services.hosting.traces import VARIABLE, OtelTraces, open_traces
from tests.otlp import receiving
from tests.waiting import wait

WHO = InstanceId("main", "r0", 0)
CORRECTION = Correction(1_000_000, 3_500_000, ("jfk",), 9_000_000, 9_005_000, 17, 4_096)


def test_a_correction_is_told_from_its_detection_to_its_end() -> None:
    history = CorrectionHistory()
    history.enter(State.UP_FAILURE, 10)
    history.answer_tentatively(("jfk",), 30)
    history.enter(State.STABILIZATION, 50)
    history.enter(State.UP_FAILURE, 60)  # a failure in the middle of the correction
    history.answer_tentatively(("lga",), 70)
    history.enter(State.STABILIZATION, 80)
    assert history.end(80, 7, 9, 90) == Correction(10, 30, ("jfk",), 80, 90, 7, 9)
    history.enter(State.STABLE, 90)
    assert history.end(100, 1, 0, 110) == Correction(100, None, (), 100, 110, 1, 0), "early answers are no failure"


@pytest.mark.parametrize("state", [State.STABLE, State.RECOVERING, None])
def test_a_failure_that_ended_without_a_correction_is_forgotten(state: State | None) -> None:
    history = CorrectionHistory()
    history.enter(State.UP_FAILURE, 10)
    history.answer_tentatively(("jfk",), 11)
    history.enter(state, 20)
    history.enter(State.UP_FAILURE, 30)
    assert history.end(40, 0, 0, 50) == Correction(30, None, (), 40, 50, 0, 0)


def test_a_span_has_the_phases_of_a_correction() -> None:
    exporter = InMemorySpanExporter()
    OtelTraces("node.q.r0", SimpleSpanProcessor(exporter)).tell("q", "overlay_redo", WHO, CORRECTION)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    whole, failure, redo = (spans[f"boreal.{name}"] for name in ("reconciliation", "failure", "redo"))
    assert (whole.start_time, whole.end_time) == (1_000_000_000, 9_005_000_000)
    assert (failure.start_time, failure.end_time, redo.end_time) == (1_000_000_000, 9_000_000_000, 9_005_000_000)
    assert whole.parent is None and failure.parent == redo.parent == whole.context
    assert [(event.name, event.timestamp) for event in whole.events] == [("tentative", 3_500_000_000)]
    assert whole.attributes is not None and whole.attributes["boreal.missing"] == ("jfk",)
    assert (whole.attributes["boreal.query"], whole.attributes["boreal.mode"]) == ("q", "overlay_redo")
    assert whole.resource.attributes["service.instance.id"] == "node.q.r0"


def test_spans_reach_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv(VARIABLE, receiver.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        traces = open_traces("worker.0")
        assert traces is not None
        traces.tell("q", "undo_redo", WHO, CORRECTION)
        traces.close()
        assert wait(lambda: bool(receiver.bodies))
        assert {span.name for span in receiver.spans()} == {"boreal.reconciliation", "boreal.failure", "boreal.redo"}


def test_without_a_receiver_nothing_is_loaded_and_without_the_packages_an_error_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_traces("worker.0") is None
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"BOREAL_TRACES: needs .*boreal\[otel\]"):
        open_traces("worker.0")
