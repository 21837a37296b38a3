"""A client of a simulated run: the production changelog, its records, and what replaying them must leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from boreal.model.frames import Frame, Start
from boreal.query.plan import Plan
from formats.changelog import Changelog, RowRecords
from formats.json_text import lines


class Client:
    """Is given every frame of an egress. Each life of the egress goes on from the place where the one before stood (R28).

    keeps_records: collect the records and the stable lines, as changes.jsonl and stable.jsonl have them.
    """

    def __init__(self, plan: Plan, keeps_records: bool) -> None:
        self._plan = plan
        self._changelog = Changelog(plan.query, plan.output.schema, (), plan.bucket_us)
        self._incarnation = 0
        self.keeps_records = keeps_records
        self.records: list[str] = []
        self.stable: list[str] = []

    def take(self, frame: Frame, now: int) -> None:
        """It reads the egress's log, and so ignores what a dead incarnation wrote (R25)."""
        incarnation = frame.origin.incarnation
        if incarnation < self._incarnation:
            return
        if isinstance(frame, Start) and self._incarnation:
            plan, place = self._plan, self._changelog.place
            self._changelog = Changelog(plan.query, plan.output.schema, (), plan.bucket_us, place=place)
        self._incarnation = incarnation
        given = self._changelog.take(frame, now)
        if not self.keeps_records or given is None:
            return
        if isinstance(given, RowRecords):
            self.records += lines(given.records).splitlines()
            self.stable += [] if given.frame.tentative else lines(given.data).splitlines()
        else:
            self.records.append(given.record)


def faults_of_records(records: list[str], stable: list[str], is_settled: bool) -> Iterator[str]:
    """What is wrong with a client's records: each says what it must, and replaying them leaves the stable lines."""
    seq = stable_seq = epoch = 0
    is_correcting = False
    through: dict[bool, str] = {}
    kept: list[Any] = []
    tentative = 0
    for text in records:
        record = json.loads(text)
        kind, seq = record["type"], seq + 1
        if record["seq"] != seq:
            yield f"seq {record['seq']} instead of {seq}"
            return
        if record["epoch"] < epoch or (kind == "undo" and record["epoch"] == epoch):
            yield f"{kind} {seq} of epoch {record['epoch']} after {epoch}"
        epoch = record["epoch"]
        is_tentative = kind == "tentative" or record.get("tentative", False)
        if is_tentative and not record["cause"]:
            yield f"{kind} {seq} names no cause"
        match kind:
            case "stable":
                if tentative:
                    yield f"stable {seq} after {tentative} tentative rows"
                stable_seq = seq
                kept.append(record["data"])
            case "tentative":
                tentative += 1
            case "undo":
                if record["after_seq"] != stable_seq:
                    yield f"undo {seq} after {record['after_seq']} instead of {stable_seq}"
                tentative, is_correcting = 0, True
                through.pop(True, None)
            case "rec_done":
                if not is_correcting:
                    yield f"rec_done {seq} without an undo"
                is_correcting = False
            case "boundary":
                if record["through"] <= through.get(record["tentative"], ""):
                    yield f"boundary {seq} to {record['through']}, after {through[record['tentative']]}"
                through[record["tentative"]] = record["through"]
        if record["stable_seq"] != stable_seq:
            yield f"{kind} {seq} has stable_seq {record['stable_seq']} instead of {stable_seq}"
    if repr(kept) != repr([json.loads(line) for line in stable]):
        yield f"replaying {len(records)} records leaves other rows than the {len(stable)} stable ones"
    if is_settled and tentative:
        yield f"{tentative} tentative rows are left"
