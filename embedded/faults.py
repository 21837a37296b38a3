"""The fault grammar: what `--fault` accepts (FORMS), and whether a plan has such targets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from boreal.model.durations import parse_duration
from boreal.model.errors import UserError
from boreal.query.plan import EGRESS, Plan

_FIELD = "--fault"


@dataclass(frozen=True, slots=True)
class Form:
    """A fault as it is written: T (from the start of the run) and D are durations of run time."""

    text: str
    """The form."""
    meaning: str
    """What the fault does."""
    example: str
    """One such fault, as written."""


FORMS = {
    "cut": (
        Form(
            "cut STREAM [to rN] at T for D",
            "Nothing of the stream reaches its readers; with rN, only these replicas; with FRAGMENT.rN, only this one. Its "
            "source goes on logging, and all of it arrives after the heal.",
            "cut jfk at 5s for 10s",
        ),
        Form(
            "cut FRAGMENT.rN at T for D",
            "The replica is cut from all that it reads, and from all that read it.",
            "cut main.r0 at 5s for 10s",
        ),
    ),
    "crash": (
        Form(
            "crash FRAGMENT.rN at T [for D] [losing checkpoint]",
            "The replica loses its memory, and its checkpoint if the fault says so. It starts again after D; without D, never.",
            "crash main.r0 at 5s for 3s losing checkpoint",
        ),
    ),
    "freeze": (
        Form(
            "freeze FRAGMENT.rN at T for D",
            "The replica stops, and after D goes on with what it had in memory.",
            "freeze main.r0 at 5s for 3s",
        ),
    ),
    "slow": (
        Form(
            "slow STREAM by D at T for D",
            "What the stream brings arrives later by the first D.",
            "slow jfk by 500ms at 5s for 10s",
        ),
        Form(
            "slow FRAGMENT.rN by D at T for D",
            "What the replica sends arrives later by the first D.",
            "slow main.r0 by 500ms at 5s for 10s",
        ),
    ),
    "stop": (Form("stop STREAM at T", "The stream is cut off for good.", "stop jfk at 5s"),),
}
"""By the verb that a fault begins with."""

_TEXTS = {verb: ", or ".join(form.text for form in forms) for verb, forms in FORMS.items()}
_TEXTS_AT_ONCE = {
    verb: text.replace(" at T", "").replace("[for D]", "for D") for verb, text in _TEXTS.items() if verb != "stop"
}

_STREAM = r"(?P<stream>[^\s.]+)"
_REPLICA = r"(?P<fragment>[^\s.]+)\.(?P<replica>[^\s.]+)"
_AT = r" at (?P<at>\S+)"
_FOR = r" for (?P<for>\S+)"


def _patterns(at: str) -> dict[str, re.Pattern[str]]:
    """How each kind of fault is written, by its kind. at: how the time of the start is written."""
    forms = {
        "cut_replica": rf"cut {_REPLICA}{at}{_FOR}",
        "cut_stream": rf"cut {_STREAM}(?: to (?:(?P<fragment>[^\s.]+)\.)?(?P<to_replica>[^\s.]+))?{at}{_FOR}",
        "crash": rf"crash {_REPLICA}{at}(?:{_FOR})?(?P<losing> losing checkpoint)?",
        "freeze": rf"freeze {_REPLICA}{at}{_FOR}",
        "slow": rf"slow (?:{_REPLICA}|{_STREAM}) by (?P<by>\S+){at}{_FOR}",
        "stop": rf"stop {_STREAM}{at}",
    }
    return {kind: re.compile(form) for kind, form in forms.items()}


_SCRIPTED = _patterns(_AT)
_AT_ONCE = {kind: pattern for kind, pattern in _patterns("").items() if kind != "stop"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A scripted fault. Times are in microseconds of run time."""

    kind: str
    """cut_stream, cut_replica, crash, freeze, slow or stop."""
    stream: str = ""
    """The stream that is cut, slowed or stopped; '' if the target is a replica."""
    fragment: str = ""
    """The fragment of the replica; '' if the fault names none."""
    replica: str = ""
    """The replica that is cut, crashed, frozen or slowed; '' if the target is a stream."""
    to_replica: str = ""
    """Of cut_stream: only this replica is cut from the stream, in `fragment` or, if that is '', in each fragment that reads the
    stream. '' cuts all replicas."""
    by_us: int = 0
    """Of slow: the additional delay."""
    at_us: int = 0
    """The start of the fault, from the start of the run."""
    for_us: int | None = None
    """The duration of the fault; None if it never heals."""
    losing_checkpoint: bool = False
    """Of crash: whether the replica also loses its checkpoint."""


def parse_fault(text: str) -> Fault:
    """Parse one fault. UserError, with the grammar of its verb, if the text is not valid."""
    return _parsed(text, _SCRIPTED, _TEXTS, _FIELD)


def parse_fault_at_once(text: str) -> Fault:
    """Parse a fault that begins at once, as `FORMS` write it without `at T`. It must end by itself: `stop`, and `crash` without
    a duration, are not valid. UserError, for the field `fault`, if the text is not valid."""
    fault = _parsed(text, _AT_ONCE, _TEXTS_AT_ONCE, "fault")
    if fault.for_us is None:
        raise UserError("fault", text, "would never end", f"write: {_TEXTS_AT_ONCE[fault.kind]} (D: 5s, 250ms)")
    return fault


def _parsed(text: str, patterns: Mapping[str, re.Pattern[str]], texts: Mapping[str, str], field: str) -> Fault:
    words = " ".join(text.split())
    for kind, pattern in patterns.items():
        match = pattern.fullmatch(words)
        if match:
            return _fault(kind, {name: part or "" for name, part in match.groupdict().items()}, field)
    verb = words.partition(" ")[0]
    if verb not in texts:
        raise UserError(field, text, f"a fault begins with one of {', '.join(texts)}", f"write: {'; '.join(texts.values())}")
    raise UserError(field, text, f"is not a valid `{verb}` fault", f"write: {texts[verb]} (T, D: 5s, 250ms)")


def _fault(kind: str, parts: dict[str, str], field: str) -> Fault:
    return Fault(
        kind=kind,
        stream=parts.get("stream", ""),
        fragment=parts.get("fragment", ""),
        replica=parts.get("replica", ""),
        to_replica=parts.get("to_replica", ""),
        by_us=parse_duration(parts["by"], field) if "by" in parts else 0,
        at_us=parse_duration(parts["at"], field, allow_zero=True) if "at" in parts else 0,
        for_us=parse_duration(parts["for"], field) if parts.get("for") else None,
        losing_checkpoint=bool(parts.get("losing")),
    )


def check_faults(faults: Iterable[Fault], plan: Plan) -> None:
    """UserError, with the choices, for a fault whose target is not in the plan. The egress cannot be a target."""
    streams = list(dict.fromkeys(edge.operator for edge in plan.sources))
    replicas = [
        f"{fragment.name}.{replica}"
        for fragment in plan.fragments
        if fragment.name != EGRESS
        for replica in fragment.replicas
    ]
    for fault in faults:
        if fault.stream and fault.stream not in streams:
            raise _unknown(fault.stream, "stream", streams, replicas)
        if fault.replica and f"{fault.fragment}.{fault.replica}" not in replicas:
            raise _unknown(f"{fault.fragment}.{fault.replica}", "replica", streams, replicas)
        if fault.to_replica:
            _check_reader(fault, plan, streams, replicas)


def _check_reader(fault: Fault, plan: Plan, streams: list[str], replicas: list[str]) -> None:
    readers = [
        f"{fragment.name}.{replica}"
        for fragment in plan.fragments
        if fragment.name != EGRESS and any(edge.source and edge.operator == fault.stream for edge in fragment.edges)
        for replica in fragment.replicas
    ]
    if fault.fragment:
        target, found = f"{fault.fragment}.{fault.to_replica}", f"{fault.fragment}.{fault.to_replica}" in readers
    else:
        target, found = fault.to_replica, any(name.endswith(f".{fault.to_replica}") for name in readers)
    if not found:
        raise _unknown(target, f"replica that reads {fault.stream}", streams, readers or replicas)


def _unknown(target: str, what: str, streams: list[str], replicas: list[str]) -> UserError:
    choices = f"choose from the streams {', '.join(streams)} and the replicas {', '.join(replicas)}"
    return UserError(_FIELD, target, f"there is no {what} {target!r}", choices)
