"""Where an egress ends with one version of the query, so that its next incarnation begins with another: `logs.egress_switch`.

The record of the query names the takeover, and says when it is agreed; the status of the egress says what it promises. After
the last boundary this incarnation ends, and the next one, in the same process, finds that boundary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from boreal.model.frames import Boundary, Frame, LogId
from logs.egress_switch import ClientFrame, EgressSwitch, NextVersion
from services.egress.out import OutTopic
from services.hosting.failpoints import failpoint
from services.hosting.process import EXIT_TAKEN_OVER
from sunion.tape import BEGINNING


@dataclass
class TakeoverOutlet:
    """The outlet of an egress's instance. All but `append` may be called from any thread."""

    out: OutTopic
    """Takes what is given."""
    written_to: int
    """The event time (us) up to which q.out has stable rows."""
    exit: Callable[[int], None]
    """Ends this incarnation of the egress with an exit code."""

    _next_version: int = field(init=False, default=0)
    _lock: threading.Lock = field(init=False, default_factory=lambda: threading.Lock())

    def __post_init__(self) -> None:
        place = self.out.changelog.place
        through = BEGINNING if place.through is None else place.through
        self._switch = EgressSwitch(place.next_stable_id, max(self.written_to, through))

    def append(self, log: LogId, frame: Frame) -> None:
        with self._lock:
            self._give(self._switch.take(log, frame))

    @property
    def appended(self) -> int:
        """Frames that are held back count, so that their inputs are not acknowledged."""
        return self.out.appended + self._switch.held

    @property
    def confirmed(self) -> int:
        return self.out.confirmed

    @property
    def may_wait(self) -> bool:
        """Also while a takeover is prepared, which may have to wait."""
        return self._lock.locked() or self.out.may_wait

    def prepare(self, following: NextVersion | None) -> None:
        """The record names this takeover; None: none, or one to the version that is given already."""
        with self._lock:
            if not self._switch.has_ended and following is not None:
                self._next_version = following.to
            self._give(self._switch.prepare(following))

    def status(self) -> dict[str, Any] | None:
        """See `EgressSwitch.status`."""
        return self._switch.status()

    def _give(self, given: Iterable[ClientFrame]) -> None:
        for each in given:
            if not each.is_last:
                self.out.append(each.log, each.frame)
                continue
            assert isinstance(each.frame, Boundary), "a version ends with a boundary"
            failpoint("egress.before_takeover")
            self.out.end_version(each.log, each.frame, self._next_version)
            failpoint("egress.after_takeover")
            self.exit(EXIT_TAKEN_OVER)
