"""The operator that docs/extending.md works out: the page's own code, held to the contract of every operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from boreal.model.errors import CorruptError
from operators.encoding import pack
from tests.property import test_operators as suite

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
PROPERTIES = [
    suite.test_results_are_the_dumb_operator_s,
    suite.test_results_and_state_are_the_same_bytes_wherever_steps_are_cut,
    suite.test_an_overlay_leaves_its_base_alone_until_it_is_absorbed,
    suite.test_a_decoded_state_goes_on_as_the_one_that_was_encoded,
    suite.test_a_state_rebuilt_from_what_it_needs_gives_the_same_results,
]


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> suite.Case:
    """What the page enters in the suite's table."""
    monkeypatch.setattr(suite, "CASES", {})
    names: dict[str, Any] = {"Case": suite.Case, "SCHEMA": suite.SCHEMA, "CASES": suite.CASES}
    exec("".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)), names)
    [(_, found)] = suite.CASES.items()
    return found


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda test: test.__name__)
def test_the_example_keeps_the_contract(case: suite.Case, holds: Any):
    [name] = suite.CASES
    holds(name)


def test_other_bytes_are_refused(case: suite.Case):
    kind = case.operator.empty().kind
    for blob in (b"", pack("another", {}, []), pack(kind, {}, []), pack(kind, {"window": 0, "value": "x"}, [])):
        with pytest.raises(CorruptError):
            case.operator.decode(blob)
