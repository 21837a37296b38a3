"""What docker-compose's Prometheus and Grafana ask for is there: every expression parses, and names metrics, labels and states
that /metrics has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from api.metrics import BUDGETS, BURNT_OVER, INPUT_STATES, QUANTILES, STATES, StatusCollector
from tests.unit.api.memory import MemoryInstallation

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana" / "boreal.json").read_text())
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES),
    *(pytest.param(target["expr"], id=panel["title"]) for panel in DASHBOARD["panels"] for target in panel["targets"]),
]
LABELS = {
    family.name + ("_total" if family.type == "counter" else ""): set(family._labelnames)  # type: ignore[attr-defined]
    for family in StatusCollector(MemoryInstallation()).collect()
}
"""The labels of each metric of ours, by the name that its samples have."""
VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "boreal_query_state": {"state": STATES},
    "boreal_input_state": {"state": INPUT_STATES},
    "boreal_slo_burn_rate": {"budget": BUDGETS, "over": tuple(BURNT_OVER)},
    "boreal_output_delay_seconds": {"quantile": tuple(QUANTILES.values())},
}


def selectors(node: Any) -> Iterator[Any]:
    """All selectors of series in a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for part in ("lhs", "rhs", "expr", "vector_selector"):
        yield from selectors(getattr(node, part)) if hasattr(node, part) else ()
    for argument in getattr(node, "args", ()):
        yield from selectors(argument)


def without_variables(text: str) -> str:
    return text.replace("$__rate_interval", "1m").replace("$__range", "30m").replace("$query", "q")


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_each_expression_asks_for_what_is_there(text: str) -> None:
    found = list(selectors(promql_parser.parse(without_variables(text))))
    assert found
    for selector in found:
        if selector.name == "up":
            continue
        assert selector.name in LABELS, selector.name
        for matcher in selector.matchers.matchers:
            assert matcher.name in LABELS[selector.name], f"{selector.name} has no label {matcher.name}"
            if known := VALUES.get(selector.name, {}).get(matcher.name):
                assert set(matcher.value.split("|")) <= set(known), matcher.value


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_says_what_is_wrong_by_labels_that_its_series_have(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    first = next(selectors(promql_parser.parse(rule["expr"])))
    assert used <= LABELS.get(first.name, set())
    assert set(rule["annotations"]) == {"summary", "description"}
    assert re.fullmatch(r"[0-9]+[smh]", rule.get("for", "0s"))


def test_each_metric_of_ours_is_on_the_dashboard() -> None:
    text = json.dumps(DASHBOARD)
    assert {name for name in LABELS if name not in text} <= {"boreal_query_paused", "boreal_hold_seconds"}


def test_the_panels_do_not_overlap_and_their_legends_have_labels_that_exist() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        for target in panel["targets"]:
            first = next(selectors(promql_parser.parse(without_variables(target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= LABELS[first.name]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_compose_mounts_files_that_exist_where_each_looks_for_them() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
        for volume in services[name]["volumes"]:
            here = volume.partition(":")[0]
            assert not here.startswith("./") or (ROOT / here).exists(), here
    prometheus = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert prometheus["rule_files"] == ["alerts.yml"]
    [job] = prometheus["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert services[host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert host in json.loads(services[host]["environment"]["BOREAL_API__HOSTS"]), "the API answers only to names that it knows"
    [source] = yaml.safe_load((FOLDER / "grafana" / "datasources.yml").read_text())["datasources"]
    assert source["uid"] == DASHBOARD["panels"][0]["datasource"]["uid"] and source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((FOLDER / "grafana" / "dashboards.yml").read_text())["providers"]
    assert any(volume.split(":")[1].startswith(provider["options"]["path"]) for volume in services["grafana"]["volumes"])
