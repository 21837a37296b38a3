"""Whether a user's operator keeps the contract: each promise with random rows, by a run that must make no difference."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from boreal.model.errors import OperatorError, UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from boreal.operators import Operator, WindowOperator
from boreal_testing.running import Trial, schema_of
from boreal_testing.sample_rows import sample_rows
from operators.encoding import decode_batch, encode_batch

_OTHER_HASH_SEED = "4711"


class ContractError(AssertionError):
    """The operator breaks a promise of the contract: which, and with which rows."""


def check_operator(
    operator: type[Operator],
    schema: Mapping[str, str] | Schema,
    parameters: Mapping[str, Any] | None = None,
    *,
    values: Mapping[str, Sequence[Any]] | None = None,
    span_us: int = 40,
    rounds: int = 50,
    seed: int = 0,
    is_repeated_elsewhere: bool = True,
) -> None:
    """Hold a class to the contract of operators. ContractError for a promise that it breaks.

    schema: the columns of its input, with their types. values: what to draw some columns from, so that keys repeat or
    conditions hold. span_us: rows have times from 0 to this: make it some windows long. rounds: how many random streams are
    tried, from `seed` on. is_repeated_elsewhere: also repeat the runs in another process, where hashes differ; the class must
    then be one that can be imported by its name.

    The promises: the columns are those that were declared; times rise, and none is before its input or after it; the same rows
    and the same state come out wherever steps are cut; a state that is encoded and decoded goes on as the one that it was made
    from; an overlay that is dropped has never been, and one that is absorbed is as if there had been none; a state that is
    rebuilt from what it needs goes on as the one that it replaces; another object of the class, and another process, give the
    same bytes; the columns that are said to be unchanged are.
    """
    given = schema if isinstance(schema, Schema) else Schema.of(dict(schema))
    chosen = dict(parameters or {})
    streams, digests = [], []
    for number in range(seed, seed + rounds):
        rows = sample_rows(given, number, Random(number).choice((0, 1, 7, 40)), span_us=span_us, values=values)
        streams.append(rows)
        try:
            digests.append(_Round(operator, given, chosen, rows, Random(number), span_us).check())
        except OperatorError as error:
            raise ContractError(f"{error} (seed {number})") from error
        except ContractError as error:
            raise ContractError(f"{operator.__qualname__}: {error} (seed {number}, {rows.num_rows} rows)") from None
    if is_repeated_elsewhere:
        _check_elsewhere(operator, chosen, streams, digests, seed)


class _Round:
    """One random stream."""

    def __init__(
        self,
        operator: type[Operator],
        given: Schema,
        parameters: Mapping[str, Any],
        rows: pa.RecordBatch,
        rng: Random,
        span: int,
    ) -> None:
        self.operator, self.given, self.parameters, self.rows = operator, given, parameters, rows
        self.trial = Trial(operator, given, parameters)
        self.cut, self.later = sorted((rng.randrange(-1, span + 2), rng.randrange(-1, span + 2)))
        self.random_cuts = sorted({rng.randrange(span) for _ in range(rng.randrange(6))})

    def check(self) -> str:
        """A digest of all that came out."""
        whole = self.trial.run(self.trial.empty(), self.rows, [INFINITY])
        expected = _bytes(whole)
        self._check_cuts(expected)
        self._check_another_object(expected)
        self._check_layers()
        self._check_encoding()
        self._check_rebuilding()
        self._check_unchanged(whole)
        return hashlib.sha256(expected).hexdigest()

    def _upto(self, time: int) -> Any:
        state = self.trial.empty()
        self.trial.run(state, self.rows, [time])
        return state

    def _check_cuts(self, expected: bytes) -> None:
        times = sorted({int(time) + 1 for time in self.rows.column(0).to_pylist()})
        plain = self._upto(self.cut).encode()
        for cuts in (times, self.random_cuts):
            made = self.trial.run(self.trial.empty(), self.rows, [*cuts, INFINITY])
            if _bytes(made) != expected:
                problem = "what comes out depends on where steps are cut"
                raise ContractError(f"{problem}: cut at {cuts} it is\n{_shown(made)}\nand uncut\n{_decoded(expected, made)}")
            state = self.trial.empty()
            self.trial.run(state, self.rows, [*(cut for cut in cuts if cut < self.cut), self.cut])
            if state.encode() != plain:
                raise ContractError(f"the state depends on where steps are cut: at {cuts}, up to time {self.cut}")

    def _check_another_object(self, expected: bytes) -> None:
        other = Trial(self.operator, self.given, self.parameters)
        for trial in (other, self.trial):
            if _bytes(trial.run(trial.empty(), self.rows, [INFINITY])) != expected:
                raise ContractError("the same rows once more give other results: something is remembered outside of the state")

    def _check_layers(self) -> None:
        base, plain = self._upto(self.cut), self._upto(self.cut)
        before = base.encode()
        dropped = base.overlay()
        some = self.rows.take(pa.array(range(0, self.rows.num_rows, 2), pa.int64()))
        self.trial.run(dropped, some, [self.later, INFINITY], self.cut)
        if base.encode() != before:
            raise ContractError("an overlay that is dropped has changed the state below it")
        redone = base.overlay()
        same = _bytes(self.trial.run(redone, self.rows, [self.later], self.cut))
        if same != _bytes(self.trial.run(plain, self.rows, [self.later], self.cut)):
            raise ContractError("an overlay gives other results than the state itself")
        base.absorb(redone)
        if base.encode() != plain.encode():
            raise ContractError("a state that has absorbed its overlay is not the one without an overlay")

    def _check_encoding(self) -> None:
        state = self._upto(self.cut)
        blob = state.encode()
        decoded = self.trial.decode(blob)
        if decoded.encode() != blob:
            raise ContractError("a state that is encoded, decoded and encoded again gives other bytes")
        rest = [self.later, INFINITY]
        wanted = _bytes(self.trial.run(state, self.rows, rest, self.cut))
        if _bytes(self.trial.run(decoded, self.rows, rest, self.cut)) != wanted:
            raise ContractError("a decoded state gives other results than the one that was encoded")

    def _check_rebuilding(self) -> None:
        needs = self.trial.needs(self.cut)
        recent = self.rows.filter(pa.array([time >= needs for time in self.rows.column(0).to_pylist()], pa.bool_()))
        state, rebuilt = self._upto(self.cut), self.trial.empty()
        self.trial.run(rebuilt, recent, [self.cut])
        if _bytes(self.trial.run(rebuilt, recent, [INFINITY], self.cut)) != _bytes(
            self.trial.run(state, self.rows, [INFINITY], self.cut)
        ):
            raise ContractError(f"a state rebuilt from the rows since {needs}, which is all it needs, gives other results")

    def _check_unchanged(self, made: pa.RecordBatch) -> None:
        names = self.trial.own.unchanged
        if not names:
            return
        of_window = isinstance(self.trial.own.operator, WindowOperator)
        given = self.rows.select(["time", *names]).to_pylist()
        there = {repr((None if of_window else row["time"], [row[name] for name in names])) for row in given}
        for row in made.select(["time", *names]).to_pylist():
            if repr((None if of_window else row["time"], [row[name] for name in names])) not in there:
                problem = f"says that {', '.join(names)} are unchanged, and gives a row that no input row is like: {row}"
                raise ContractError(problem)


def digest(operator: type[Operator], rows: pa.RecordBatch, parameters: Mapping[str, Any]) -> str:
    """What comes out of these rows, as a digest."""
    trial = Trial(operator, schema_of(rows), parameters)
    return hashlib.sha256(_bytes(trial.run(trial.empty(), rows, [INFINITY]))).hexdigest()


def _check_elsewhere(
    operator: type[Operator],
    parameters: Mapping[str, Any],
    streams: Sequence[pa.RecordBatch],
    expected: Sequence[str],
    seed: int,
) -> None:
    if "<locals>" in operator.__qualname__:
        fix = "define it at the top of a module, or pass is_repeated_elsewhere=False"
        raise UserError("operator", operator.__qualname__, "cannot be imported in another process", fix)
    sent = pa.BufferOutputStream()
    with pa.ipc.new_stream(sent, streams[0].schema) as writer:
        for rows in streams:
            writer.write_batch(rows)
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONHASHSEED": _OTHER_HASH_SEED, "PYTHONPATH": paths}
    command = [sys.executable, "-P", "-m", "boreal_testing", operator.__module__, operator.__qualname__, json.dumps(parameters)]
    done = subprocess.run(command, input=sent.getvalue().to_pybytes(), env=environment, capture_output=True)
    if done.returncode:
        raise ContractError(f"{operator.__qualname__} cannot be run in another process:\n{done.stderr.decode().strip()}")
    for number, (here, there) in enumerate(zip(expected, done.stdout.decode().split(), strict=True), start=seed):
        if here != there:
            problem = "another process, with another PYTHONHASHSEED, gives other results: does the order of a set show?"
            raise ContractError(f"{operator.__qualname__}: {problem} (seed {number})")


def _bytes(batch: pa.RecordBatch) -> bytes:
    return encode_batch(batch)


def _decoded(blob: bytes, like: pa.RecordBatch) -> str:
    return _shown(decode_batch(blob, like.schema))


def _shown(batch: pa.RecordBatch) -> str:
    return "\n".join(map(str, batch.to_pylist()[:20]))
