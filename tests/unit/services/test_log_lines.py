"""Logs in both formats."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from boreal.model.errors import UserError
from services.hosting.log_lines import LineHandler, facts, set_up_logging

FIELDS = ["time", "level", "process", "kind", "query", "thread", "logger", "message", "facts", "error"]


@contextmanager
def logged_by(process: str) -> Iterator[io.StringIO]:
    """What this process logs within, without the handlers of pytest."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    said = io.StringIO()
    try:
        set_up_logging(process, said)
        yield said
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_each_event_is_a_line_with_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOREAL_LOG_FORMAT", "json")
    with logged_by("node.departures.r0") as said:
        logger = logging.getLogger("boreal.of_this_test")
        logger.info("%s is %s", "main.r0.0", "STABLE", extra=facts(instance="main.r0.0", state="STABLE"))
        logger.debug("not said")
        try:
            raise KeyError("é\nb")
        except KeyError:
            logger.exception("two\nlines")
    first, second = (json.loads(line) for line in said.getvalue().splitlines())
    assert list(first) == list(second) == FIELDS
    assert (first["process"], first["kind"], first["query"]) == ("node.departures.r0", "node", "departures")
    assert (first["level"], first["message"], first["error"]) == ("INFO", "main.r0.0 is STABLE", None)
    assert first["facts"] == {"instance": "main.r0.0", "state": "STABLE"} and first["time"].endswith("Z")
    assert second["message"] == "two\nlines" and "KeyError" in second["error"] and second["facts"] == {}


def test_text_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOREAL_LOG_FORMAT", raising=False)
    monkeypatch.setenv("BOREAL_LOG_LEVEL", "WARNING")
    with logged_by("monitor") as said:
        logging.getLogger("boreal.of_this_test").info("no")
        logging.getLogger("boreal.of_this_test").warning("yes")
    [line] = said.getvalue().splitlines()
    assert line.endswith(" WARNING monitor boreal.of_this_test: yes")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_of_a_worker_says_which_role_speaks(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("BOREAL_LOG_FORMAT", form)
    with logged_by("worker.0") as said:
        speaks = partial(logging.getLogger("boreal.of_this_test").warning, "it fails")
        thread = threading.Thread(target=speaks, name="source.departures.jfk")
        thread.start()
        thread.join()
    [line] = said.getvalue().splitlines()
    if form == "text":
        assert line.endswith(" WARNING worker.0/source.departures.jfk boreal.of_this_test: it fails")
    else:
        found = json.loads(line)
        assert (found["process"], found["query"], found["thread"]) == ("worker.0", None, "source.departures.jfk")


@pytest.mark.parametrize(("variable", "value"), [("BOREAL_LOG_FORMAT", "xml"), ("BOREAL_LOG_LEVEL", "LOUD")])
def test_what_is_no_choice_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=f"{variable}: is not a choice .*'{value}'"):
        set_up_logging("monitor")


IN_A_PROCESS = """
import logging
from services.hosting.process import run_process

def serve(stopping):
    logging.getLogger("uvicorn.error").warning("a warning of the server's")
    raise RuntimeError("on purpose")

run_process("egress.q.a", serve)
"""


def test_a_process_that_fails_says_so_in_lines_that_all_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOREAL_LOG_FORMAT", "json")
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS], capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert [line["message"] for line in lines] == ["a warning of the server's", "egress.q.a failed"]
    assert {line["process"] for line in lines} == {"egress.q.a"} and "on purpose" in lines[1]["error"]


def test_a_line_is_written_whole_and_at_once_whatever_another_thread_holds(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        handler = LineHandler(stream)
        handler.setFormatter(logging.Formatter("%(message)s"))
        assert handler.lock is None, "a thread that is stopped while it logs stops no other"
        for text in ("one", "two \N{SNOWMAN}", "x" * 100_000):
            handler.handle(logging.makeLogRecord({"msg": text}))
        assert (tmp_path / "log").read_text() == f"one\ntwo \N{SNOWMAN}\n{'x' * 100_000}\n"


def test_a_line_that_cannot_be_written_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[logging.LogRecord] = []
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as stream:
        handler = LineHandler(stream)
        monkeypatch.setattr(handler, "handleError", failed.append)
        handler.handle(logging.makeLogRecord({"msg": "nobody reads this"}))
    assert len(failed) == 1
