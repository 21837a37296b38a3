"""docs/behaviour.md is what its command writes: a few of its cells, run again, are what the page says."""

from __future__ import annotations

import re

import pytest

from simulation.behaviour import FAULTS, HOLDS, PAGE, SHAPES, X_S, ClientSummary, observe, told
from tests.thoroughness import every

FAULT_TEXTS = [*FAULTS]
SHORT, LONG, CRASH, STOP = FAULT_TEXTS[0], FAULT_TEXTS[1], FAULT_TEXTS[4], FAULT_TEXTS[-1]
CELLS = [
    ("count by tumbling window", SHORT, "process/process"),
    ("filter of a union", LONG, "process/process"),
    ("inner join", LONG, "suspend/delay"),
    ("lookup in a table, which is stream a", LONG, "process/process"),
    ("count by session", LONG, "delay/suspend"),
    ("count, in a chain of two fragments", CRASH, "delay/process"),
    ("top 2 by window", STOP, "process/suspend"),
]


def cells_of_the_page() -> dict[tuple[str, str, str], str]:
    found: dict[tuple[str, str, str], str] = {}
    fault = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            [fault] = (text for text in FAULTS if line[3:].lower() == text.lower())
        elif line.startswith("| ") and not line.startswith("| query"):
            shape, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            for failure, text in zip(HOLDS, cells, strict=True):
                cell = text.strip(" |")
                each = dict(re.findall(r"`(\w+/\w+)`: (.*?)(?=; `|$)", cell))
                found |= {(shape, fault, policy): each.get(policy, cell) for policy in (f"{failure}/{hold}" for hold in HOLDS)}
    return found


def test_the_page_has_a_cell_for_each_shape_fault_and_policy() -> None:
    policies = [f"{failure}/{hold}" for failure in HOLDS for hold in HOLDS]
    assert list(cells_of_the_page()) == [(shape, fault, policy) for fault in FAULTS for shape in SHAPES for policy in policies]


def test_where_the_policy_is_process_and_a_replica_lives_no_new_result_is_later_than_x() -> None:
    late = [place for place, cell in cells_of_the_page().items() if "**" in cell and place[2].startswith("process")]
    assert {fault for _, fault, _ in late} <= {"both replicas crash, and are back after five seconds"}


@pytest.mark.parametrize(("shape", "fault", "policy"), every(4, CELLS))
def test_a_cell_is_what_a_client_sees(shape: str, fault: str, policy: str) -> None:
    seen = observe(shape, fault, policy)
    assert told(seen) == cells_of_the_page()[shape, fault, policy], "run python -m simulation.behaviour"
    assert seen.waited <= X_S or not policy.startswith("process")


def test_a_wait_of_more_than_x_is_bold() -> None:
    assert "**2.1 s**" in told(ClientSummary(9, 2.1, 0, 0, 0, True, None))
    assert "**" not in told(ClientSummary(9, 2.0, 0, 0, 0, True, None))
