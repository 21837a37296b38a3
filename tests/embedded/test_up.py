"""`boreal up --embedded --demo` as a user meets it: real processes, real time, HTTP."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from boreal_cli import main
from tests.embedded.installation import begin_again, boreal, demo_up
from tests.waiting import wait_until

SMALL = """
name: small
streams: {a: {time: at, schema: {k: string}, boundary: clock}}
output: a
delay_threshold: 3s
replicas: 1
"""
STATUS = "/api/v1/queries/departures/status"


def test_the_demo_from_up_to_down(tmp_path: Path) -> None:
    with demo_up(tmp_path) as up:
        assert up.status["ready"] and up.status["queries"] == ["departures"] and up.status["kafka"] == {}
        (process,) = up.status["processes"]
        assert process["kind"] == "api" and process["state"] == "running"
        assert json.loads(boreal("status", "--json", "--data", str(tmp_path)).stdout) == up.status
        assert up.call("GET", STATUS, Authorization="")[0] == 401
        wait_until(lambda: up.call("GET", STATUS)[2]["counts"]["stable"] > 0, "the first stable row")

        with urlopen(f"{up.status['api']}/", timeout=10) as page:
            assert "default-src 'self'" in page.headers["Content-Security-Policy"] and b"static/app.js" in page.read()
        zipped = Request(f"{up.status['api']}/static/app.js", headers={"Accept-Encoding": "gzip"})
        with urlopen(zipped, timeout=10) as script:
            assert script.headers["Content-Encoding"] == "gzip" and b"Age" in gzip.decompress(script.read())
        code, headers, session = up.call("POST", "/api/v1/session")
        cookie = headers["set-cookie"]
        assert code == 200 and "HttpOnly" in cookie and "SameSite=strict" in cookie
        named = cookie.partition(";")[0]
        assert up.call("GET", "/api/v1/session", Authorization="", Cookie=named)[2] == session and session["may"]["chaos"]
        assert up.call("GET", "/api/v1/session", Authorization="", Cookie=f"{named}x")[0] == 401
        refused = up.call("PATCH", STATUS[:-7], {}, Authorization="", Cookie=named, Origin="http://example.com")
        assert refused[0] == 403, "a page of another origin"

        code, headers, changed = up.call("PATCH", "/api/v1/queries/departures", {"delay_threshold": "1s"})
        assert (code, changed["delay_threshold"]) == (200, "1s")
        stale = {"If-Match": '"1"'}
        assert up.call("PATCH", "/api/v1/queries/departures", {"delay_threshold": "2s"}, **stale)[0] == 412
        unknown = boreal("fault", "cut", "jfx", "for", "60s", "--data", str(tmp_path), "--json")
        assert unknown.returncode == 2 and json.loads(unknown.stderr)["error"]["field"] == "fault"
        assert boreal("fault", "cut", "jfk", "for", "60s", "--data", str(tmp_path)).stdout.startswith("cut jfk for 60s")
        wait_until(lambda: up.call("GET", STATUS)[2]["tentative"]["outstanding"] > 0, "tentative rows")
        assert up.call("POST", "/api/v1/chaos", {"fault": "heal jfk"})[0] in (200, 201, 202)
        wait_until(lambda: up.call("GET", STATUS)[2]["counts"]["undone"] > 0, "undone rows")
        wait_until(lambda: up.call("GET", STATUS)[2]["tentative"]["outstanding"] == 0, "only stable rows")

        failed = json.loads(boreal("failures", "departures", "--data", str(tmp_path), "--json").stdout)["failures"]
        cut = next(each["id"] for each in failed if "jfk" in each["missing"])
        in_full = boreal("failures", "departures", cut, "--data", str(tmp_path)).stdout
        assert "jfk missing" in in_full and "main.r0.0" in in_full and "on purpose: cut jfk for 60s" in in_full
        assert cut in boreal("failures", "departures", "--data", str(tmp_path)).stdout
        happened = boreal("events", "--kind", "changed", "--kind", "chaos_begun", "--data", str(tmp_path)).stdout
        assert "chaos begun" in happened and "delay_threshold 3s -> 1s" in happened
        unknown = boreal("events", "--kind", "change", "--data", str(tmp_path), "--json")
        assert unknown.returncode == 2 and json.loads(unknown.stderr)["error"]["field"] == "kind"

        listed = boreal("query", "list", "--data", str(tmp_path))
        assert "departures" in listed.stdout and listed.stderr == f"through the API at {up.status['api']}\n"
        file = tmp_path / "small.yaml"
        file.write_text(SMALL)
        applied = json.loads(boreal("query", "apply", str(file), "--data", str(tmp_path), "--json").stdout)
        assert applied["live"] and applied["revision"] == 1
        wait_until(lambda: up.call("GET", "/api/v1/queries/small/status")[2]["ready"], "the query is ready")
        assert "small.a" in boreal("stream", "list", "--data", str(tmp_path)).stdout
        read = json.loads(boreal("stream", "list", "--json", "--data", str(tmp_path)).stdout)["streams"]
        assert {"departures.jfk", "small.a"} <= {each["records"] for each in read} and all(each["alike"] for each in read)
        assert up.call("POST", "/api/v1/streams/small.a/tuples", [{"at": "2999-01-01", "k": "x"}])[0] == 202

        def letters() -> str:
            return boreal("dlq", "show", "small", "--data", str(tmp_path)).stdout

        wait_until(lambda: "ahead of the clock" in letters() and '"k": "x"' in letters(), "a dead letter")
        assert "1 record put back" in boreal("dlq", "replay", "small", "--reason", "ahead", "--data", str(tmp_path)).stdout
        wait_until(lambda: letters().count("ahead of the clock") == 2, "which is refused again")
        again = json.loads(boreal("dlq", "replay", "small", "--json", "--data", str(tmp_path)).stdout)
        assert again["replayed"] == 1 and again["left"] == [{"reason": "was put back before", "letters": 1}]
        assert "replayed 1" in boreal("events", "--kind", "replayed", "--data", str(tmp_path)).stdout
        shown = json.loads(boreal("query", "show", "small", "--json", "--data", str(tmp_path)).stdout)
        assert shown["streams"]["a"]["dlq"] >= 2 and shown["streams"]["a"]["last_refusal"]
        short = boreal("query", "set", "small", "delay_threshold=1ms", "--data", str(tmp_path), "--json")
        assert short.returncode == 2 and json.loads(short.stderr)["error"]["field"] == "delay_threshold"
        assert boreal("query", "pause", "small", "--data", str(tmp_path)).stdout == "small is paused\n"
        assert boreal("query", "delete", "small", "--data", str(tmp_path)).stdout == "small is deleted\n"

        again = boreal("up", "--embedded", "--demo", "--data", str(tmp_path))
        assert again.returncode == 0 and "already up" in again.stdout
        down = boreal("down", "--data", str(tmp_path), "--json")
        assert json.loads(down.stdout) == {"was_up": True}
        none = boreal("fault", "cut", "jfk", "for", "1s", "--data", str(tmp_path), "--json")
        assert none.returncode == 2 and json.loads(none.stderr)["error"]["field"] == "--data"
        assert not psutil.pid_exists(process["pid"]) or psutil.Process(process["pid"]).status() == psutil.STATUS_ZOMBIE
    assert (tmp_path / "logs" / "api.log").read_text() == ""


@pytest.mark.soak
def test_a_killed_process_loses_no_job_and_no_event(tmp_path: Path) -> None:
    with demo_up(tmp_path) as up:
        job = {"id": "kept", "query": "departures", "speed": "600x", "modes": ["overlay_redo"], "policies": ["process/process"]}
        assert up.call("PATCH", "/api/v1/queries/departures", {"delay_threshold": "2s"})[0] == 200
        sources = dict.fromkeys(("ewr", "jfk", "lga"), "generate:1,20000")
        assert up.call("POST", "/api/v1/comparisons", {**job, "sources": sources})[0] == 202

        def state() -> str:
            return str(up.call("GET", "/api/v1/comparisons/kept")[2]["state"])

        wait_until(lambda: state() == "running", "the job runs")
        happened = up.call("GET", "/api/v1/events?limit=1000")[2]["events"]
        assert {"changed", "job_created"} <= {event["kind"] for event in happened}
        os.kill(up.status["processes"][0]["pid"], signal.SIGKILL)
        begin_again(up)
        told = up.call("GET", "/api/v1/events?limit=1000")[2]["events"]
        assert [event for event in told if event["id"] <= happened[0]["id"]] == happened
        assert state() in ("queued", "running")
        assert up.call("GET", "/api/v1/queries/departures")[2]["delay_threshold"] == "2s"
        wait_until(lambda: state() == "done", "the job begins again", within_s=300)
        ends = up.call("GET", "/api/v1/events?kind=job_created&kind=job_done")[2]["events"]
        assert [event["kind"] for event in ends if event["facts"]["id"] == "kept"] == ["job_done", "job_created"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--demo"], "--embedded --demo"),
        (["--embedded", "--sites", "2"], "--sites"),
        (["--embedded"], "holds a stack with Kafka"),
    ],
)
def test_what_cannot_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    (tmp_path / "stack.json").write_text('{"v": 1, "sites": ["a"], "port": 8080}')
    assert main(["up", *options, "--data", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_commands_for_a_stack_say_that_it_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stack.json").write_text('{"v": 1, "embedded": true, "port": 8080}')
    for command in (["up"], ["query", "list"], ["tail", "q"]):
        assert main([*command, "--data", str(tmp_path)]) == 2
        assert "holds an embedded installation" in capsys.readouterr().err
    assert main(["status", "--json", "--data", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["ready"] is False
