"""What statuses say, as Prometheus metrics. Nothing is counted here, so restarts of the API reset nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.installation import Installation
from formats.record_parsing import KINDS_OF_REFUSALS, kind_of_refusal

STATES = ("STABLE", "UP_FAILURE", "STABILIZATION", "RECOVERING", "STARTING", "FAILURE", "PAUSED")
INPUT_STATES = ("live", "idle", "spooling", "failed", "starting", "paused")
QUANTILES = {"p50": "0.5", "p99": "0.99", "max": "1"}
BUDGETS = ("results", "time")
BURNT_OVER = {"1h": "burn_1h", "6h": "burn_6h"}
DEAD_LETTERS = {"refused": "dlq", "ahead": "ahead"}


class StatusCollector(Collector):
    """Collects the metrics of all queries of an installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    def collect(self) -> Iterator[Metric]:
        state = _gauge("query_state", "1 for the state of the query, as clients see it.", "state")
        paused = _gauge("query_paused", "Whether the query is paused.")
        rows = _counter("output_tuples", "Rows that clients were given.", "type")
        undone = _counter("undone_tuples", "Tentative rows that were revoked.")
        delay = _gauge("output_delay_seconds", "The delay of new rows lately.", "quantile")
        threshold = _gauge("delay_threshold_seconds", "X, the delay threshold.")
        held = _gauge("hold_seconds", "How long a bucket may be held back for missing input.")
        late = _counter("delay_violations", "New rows that came later than X after their ingest.")
        tentative = _gauge("tentative_outstanding", "Tentative rows that are not revoked.")
        stable = _gauge("last_stable_timestamp_seconds", "Up to which event time stable input is processed, since 1970.")
        inputs = _gauge("input_state", "1 for the state of the stream.", "stream", "state")
        age = _gauge("input_ingest_age_seconds", "How long ago the source logged the last row.", "stream")
        dead = _counter("dlq_records", "Records that a source has refused.", "stream", "reason")
        refusal = _gauge("input_last_refusal", "1 for the kind of the record that a source has refused last.", "stream", "kind")
        coerced = _counter("input_coerced_values", "Values that a source has converted from another JSON type.", "stream")
        lag = _gauge("input_lag_records", "Records of the stream's topic that its source has not taken yet.", "stream")
        behind = _gauge("input_lag_seconds", "For how long there have been such records.", "stream")
        frozen = _gauge("frozen_processes", "Processes of the query that a signal has stopped.")
        portion = _gauge("tentative_share_ratio", "Tentative rows among all rows that clients were given.")
        memory = _gauge("memory_bytes", "Memory of the query's processes; of a shared one, an equal part.")
        cores = _gauge("processor_cores", "Cores that the query's processes take; of a shared one, an equal part.")
        seconds = _gauge("reconciliation_seconds", "How long the last correction of an instance took.", "instance", "mode")
        held_rows = _gauge("buffer_tuples", "Rows of its inputs that an instance has in memory.", "instance")
        copied = _gauge("checkpoint_bytes", "The size of the last copy of an instance's state; 0 before the first.", "instance")
        objective = _gauge("slo_objective_ratio", "The share that is to be on time, and not tentative.")
        share = _gauge("slo_share_ratio", "The share that was, within the window of the objective.", "budget")
        left = _gauge("slo_budget_left_ratio", "How much of the budget is left; below 0 it is overspent.", "budget")
        burn = _gauge("slo_burn_rate", "How fast the budget was spent lately; 1 spends it within its window.", "budget", "over")
        records = self._installation.queries()
        for name, status in self._installation.statuses(records).items():
            for known in STATES:
                state.add_metric([name, known], float(status["state"] == known))
            paused.add_metric([name], float(bool(status.get("paused"))))
            for kind in ("stable", "tentative"):
                rows.add_metric([name, kind], status["counts"][kind])
            undone.add_metric([name], status["counts"]["undone"])
            for field, quantile in QUANTILES.items():
                _add(delay, [name, quantile], status["delay_ms"][field], 1e-3)
            _add(threshold, [name], status["x_ms"], 1e-3)
            _add(held, [name], status["alpha_x_ms"], 1e-3)
            late.add_metric([name], status["violations"])
            tentative.add_metric([name], status["tentative"]["outstanding"])
            frozen.add_metric([name], len(status.get("frozen", ())))
            _add(portion, [name], status.get("tentative_share"), 1)
            if (resources := status.get("resources")) is not None:
                _add(memory, [name], resources["memory_bytes"], 1)
                _add(cores, [name], resources["cores"], 1)
            if (slo := status.get("slo")) is not None:
                objective.add_metric([name], round(slo["objective"] / 100, 9))
                for budget in BUDGETS:
                    _add(share, [name, budget], slo[budget]["share"], 1)
                    left.add_metric([name, budget], slo[budget]["budget_left"])
                    for over, field in BURNT_OVER.items():
                        burn.add_metric([name, budget, over], slo[budget][field])
            positions = [replica["position"] for replica in status["replicas"] if replica.get("position") is not None]
            _add(stable, [name], max(positions, default=None), 1e-6)
            for stream in status["inputs"]:
                for known in INPUT_STATES:
                    inputs.add_metric([name, stream["name"], known], float(stream["state"] == known))
                _add(age, [name, stream["name"]], stream["last_ingest_age_ms"], 1e-3)
                _add(lag, [name, stream["name"]], stream.get("lag_records"), 1)
                _add(behind, [name, stream["name"]], stream.get("lag_ms"), 1e-3)
                _add(coerced, [name, stream["name"]], stream.get("coerced"), 1)
                if stream.get("dlq") is not None:
                    last = kind_of_refusal(stream["last_refusal"]) if stream.get("last_refusal") else None
                    for kind in KINDS_OF_REFUSALS:
                        refusal.add_metric([name, stream["name"], kind], float(kind == last))
                for reason, field in DEAD_LETTERS.items():
                    _add(dead, [name, stream["name"], reason], stream.get(field), 1)
            for entry in self._installation.instances(name) if name in records else ():
                who = f"{entry['fragment']}.{entry['replica']}.{entry['shard']}"
                _add(seconds, [name, who, str(records[name].spec["reconcile"])], entry["last_reconciliation_s"], 1)
                _add(held_rows, [name, who], entry.get("held_rows"), 1)
                _add(copied, [name, who], entry.get("checkpoint_bytes"), 1)
        yield from (
            state, paused, rows, undone, delay, threshold, held, late, tentative, stable, inputs, age, dead, seconds,
            refusal, coerced, frozen, lag, behind, portion, memory, cores, held_rows, copied, objective, share, left, burn,
        )  # fmt: skip


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"boreal_{name}", text, labels=["query", *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"boreal_{name}", text, labels=["query", *labels])


def _add(metric: Any, labels: list[str], value: float | None, unit: float) -> None:
    """Add a sample, where the value is known. unit: of the value, in that of the metric."""
    if value is not None:
        metric.add_metric(labels, value * unit)
