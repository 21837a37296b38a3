"""A fragment's DAG of operators, stepped as one unit."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY
from boreal.query.plan import Fragment
from operators.build import build_operator
from operators.encoding import pack, unpack
from operators.operator import OperatorState


class GraphState:
    """The states of all operators, by name. It has layers and an encoding like an `OperatorState`."""

    __slots__ = ("kind", "states")

    def __init__(self, kind: str, states: dict[str, OperatorState]) -> None:
        self.kind = kind
        self.states = states

    def overlay(self) -> GraphState:
        return GraphState(self.kind, {name: state.overlay() for name, state in self.states.items()})

    def absorb(self, child: GraphState) -> None:
        for name, state in self.states.items():
            state.absorb(child.states[name])

    def encode(self) -> bytes:
        return pack(self.kind, {}, [state.encode() for state in self.states.values()])

    def nbytes(self) -> int:
        return sum(state.nbytes() for state in self.states.values())


class FragmentGraph:
    """A fragment's operators. Immutable, since states are separate; one graph serves any number of instances."""

    def __init__(self, fragment: Fragment) -> None:
        """UserError if an operator's expressions are invalid."""
        self.operators = {node.name: build_operator(node) for node in fragment.nodes}
        self._inputs = {node.name: node.inputs for node in fragment.nodes}
        self._outputs = tuple(dict.fromkeys(edge.operator for edge in fragment.outputs))
        self._kind = f"fragment {' '.join(self.operators)}"
        self.unbounded = any(operator.needs(0) <= -INFINITY for operator in self.operators.values())
        """Whether some state depends on all earlier input, so that it cannot be rebuilt from a bounded past (R20, R26)."""

    def empty(self) -> GraphState:
        """The state before the first step."""
        return GraphState(self._kind, {name: operator.empty() for name, operator in self.operators.items()})

    def decode(self, blob: bytes) -> GraphState:
        """The state that `GraphState.encode` encoded. CorruptError if the bytes are not a state of this fragment."""
        named = zip(self.operators.items(), self._parts(blob), strict=True)
        return GraphState(self._kind, {name: operator.decode(part) for (name, operator), part in named})

    def _parts(self, blob: bytes) -> list[bytes]:
        """The encoded state of each operator."""
        _, parts = unpack(blob, self._kind)
        if len(parts) != len(self.operators):
            raise CorruptError(f"{len(parts)} states for {len(self.operators)} operators")
        return parts

    def carry(self, blob: bytes, former: FragmentGraph, names: Collection[str]) -> bytes:
        """A state of this fragment, encoded: that of the named operators as the former fragment, which has the same ones, has
        encoded it; the empty state of all others. CorruptError if the bytes are not a state of the former fragment."""
        kept = dict(zip(former.operators, former._parts(blob), strict=True))
        parts = [kept[name] if name in names else operator.empty().encode() for name, operator in self.operators.items()]
        return pack(self._kind, {}, parts)

    def remembers(self, name: str) -> bool:
        """Whether an operator's results depend on earlier rows."""
        return self.operators[name].needs(1) < 1

    def step(self, state: GraphState, batches: Mapping[str, pa.RecordBatch], upto: int) -> dict[str, pa.RecordBatch]:
        """Process one step; modifies `state`. batches: by input of the fragment. upto: end of the step as event time (us).
        Returns the rows of each output, by the name of its operator."""
        made = dict(batches)
        for name, operator in self.operators.items():
            read = tuple(made[source] for source in self._inputs[name])
            try:
                made[name] = operator.step(state.states[name], read, upto)
            except Exception as error:
                error.add_note(f"in operator {name}, in the step up to event time {upto} us")
                raise
        return {name: made[name] for name in self._outputs}

    def needs(self, time: int) -> int:
        """The oldest input time on which the state at `time`, and outputs at or after it, depend.

        Each operator must be exact from `time` on, or from where the operators that read it need its results.
        """
        exact_from: dict[str, int] = {}
        for name, operator in reversed(self.operators.items()):
            wanted = operator.needs(exact_from.get(name, time))
            for source in self._inputs[name]:
                exact_from[source] = min(exact_from.get(source, time), wanted)
        return max(min(exact_from.values(), default=time), -INFINITY)
