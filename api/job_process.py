"""`python -m api.job_process FOLDER`: runs the job in a folder, and ends. `api.jobs` starts it.

It gives way to other processes, has limits of its own, and ends at once when its standard input does: then the API has ended.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api import comparisons, recomputations, replays, verifications
from api.comparisons import ComparisonRequest, OnProgress
from api.jobs import PROBLEM, PROGRESS, REQUEST, RESULT, WORK
from api.replays import ReplayRequest
from api.verifications import VerificationRequest
from boreal.model.errors import UserError
from embedded.run_folder import write_whole

NICENESS = 10
LONGEST_S = 1_800
"""How much processor time a job may take."""
LARGEST_FILE_BYTES = 1 << 30
"""How large a file of a run may get."""


def work(folder: Path) -> None:
    """Do what `request.json` asks for: progress.json is written as it goes on, and result.json or problem.json in the end."""
    for name in (PROGRESS, RESULT, PROBLEM):
        (folder / name).unlink(missing_ok=True)
    scratch = folder / WORK
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))

    def on_progress(done: int, total: int) -> None:
        write_whole(folder / PROGRESS, json.dumps({"done": done, "total": total}))

    try:
        result = _run(folder, request, scratch, on_progress)
    except UserError as error:
        write_whole(folder / PROBLEM, json.dumps(error.to_dict()))
        sys.exit(2)
    write_whole(folder / RESULT, json.dumps(result))


def _run(folder: Path, request: Mapping[str, Any], scratch: Path, on_progress: OnProgress) -> dict[str, Any]:
    asked, spec = dict(request["asked"]), request["spec"]
    if request.get("kind") == "backfill":
        return recomputations.run_backfill(recomputations.saved(folder, request), folder, scratch, on_progress)
    if "since_ms" in asked:
        found = recomputations.saved(folder, request)
        return recomputations.run_verification(found, folder, scratch, on_progress, request["show_rows"])
    if request.get("kind") == "verification":
        return verifications.run(VerificationRequest.model_validate(asked), spec, scratch, on_progress)
    if "failure" in asked:
        del asked["query"], asked["failure"]
        return replays.run(ReplayRequest.model_validate(asked), replays.saved(folder, request), scratch, on_progress)
    return comparisons.run(ComparisonRequest.model_validate(asked), spec, scratch, on_progress)


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE_BYTES, LARGEST_FILE_BYTES))
    threading.Thread(target=_end_with_input, daemon=True).start()
    work(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
