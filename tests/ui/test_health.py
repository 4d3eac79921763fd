"""`/health`, the figures of a job in `/metrics`, and the alerts over them."""

import re
import shutil
import subprocess
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import arrowstate
from arrowstate.log.jobs import FailedCheckpoint, Failure, JobReport, OperatorReport, as_json, put_report
from arrowstate_formats.documents import JobDocument

from .conftest import NASTY, Visit

ALERTS = Path(__file__).parents[2] / "docs/operating/alerts.yml"
NOW_MS = 1_763_800_000_000


def store_with(state, **report):
    store = arrowstate.open_store(f"memory://ui-health-{uuid.uuid4().hex}", create=True)
    store.clock_ms = lambda: NOW_MS
    with store.writer() as writer:
        key = pa.schema([("user", pa.string())])
        writer.checkpoint({"op": [arrowstate.KeyedStateBackend(key=key, max_parallelism=128)]})
    document = JobDocument(
        writer_epoch=1,
        holder=NASTY,
        lease_ms=10_000,
        renewal=0,
        state=state,
        written_at_ms=NOW_MS,
        report=as_json(JobReport(since_ms=NOW_MS - 5_000, interval_ms=1_000, attempt=2, **report)),
    )
    put_report(store.storage, document)
    return store


FULL = {
    "failures": (Failure(NOW_MS - 9_000, 1, "ValueError", NASTY, "row 7 with key 'ann'"),),
    "failed_checkpoints": (FailedCheckpoint(3, 1, 2, "expired", NASTY),),
    "failed_count": 1,
    "restarts": 1,
    "operators": (
        OperatorReport(
            operator="rows",
            is_source=True,
            lag_ms=2_500,
            late_rows=4,
            dead_rows=5,
            subtasks=((0, 10.0, 0.5, 0.25, 7), (1, 0.0, 0.0, 0.0, 0)),
            minutes=((NOW_MS, 0.5, 0.25),),
        ),
    ),
}


def samples_of(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["running"], 200),
        (["finished"], 200),
        (["stopped"], 200),
        (["down"], 503),
        (["failed"], 503),
        (["starting"], 503),
        (["running", "down"], 503),
        (["running", "finished"], 200),
    ],
)
def test_a_probe_is_told_whether_somebody_needs_to_look_at_any_of_the_jobs(states, code):
    visit = Visit(*(store_with(state) for state in states))

    answer = visit.get("/health")

    assert answer.status_code == code
    assert answer.json()["is_ok"] == (code == 200)


def test_who_has_no_token_is_told_no_text_of_a_failure_and_no_place():
    store = store_with("down", reason="a row of somebody", **FULL)
    visit = Visit(store)
    told = visit.get("/health").json()
    del visit.client.headers["authorization"]

    answer = visit.get("/health")

    assert answer.status_code == 503
    assert answer.json() == {"is_ok": False, "jobs": [{"status": "down", "is_ok": False}]}
    assert told["jobs"][0]["problems"] == ["a row of somebody"]
    assert told["jobs"][0]["report"]["failures"][0]["row"] == "row 7 with key 'ann'"
    assert [visit.get(path).status_code for path in ("/metrics", "/0/health", "/0/health.json")] == [401] * 3
    assert visit.client.post("/health").status_code == 401
    assert visit.get("/health", headers={"host": "elsewhere"}).status_code == 400


def test_a_store_that_cannot_be_read_is_not_ok(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    with store.writer():
        (entry,) = (tmp_path / "store/log").iterdir()
    entry.write_bytes(b"{")

    answer = Visit(store).get("/health")

    assert answer.status_code == 503
    assert answer.json()["jobs"][0]["status"] == "unknown"


def test_the_first_page_begins_with_the_job_and_shows_its_texts_as_texts():
    visit = Visit(store_with("running", **FULL))

    part = visit.get("/0/health", headers={"hx-request": "true"}).text

    assert visit.get("/0/checkpoints").text.index("/0/health") < visit.get("/0/checkpoints").text.index('id="live"')
    assert "<script>alert" not in part
    assert "row 7 with key" in part
    assert 'class="load"' in part
    assert "Job:" not in Visit(arrowstate.open_store(f"memory://{uuid.uuid4().hex}", create=True)).get("/0/health").text


def test_charts_mark_failures_of_the_job_and_checkpoints_that_failed():
    failures = tuple(Failure(NOW_MS + after_ms, 1, "ValueError", NASTY) for after_ms in (-9_000, 3_000))
    failed = FailedCheckpoint(3, NOW_MS + 1_000, NOW_MS + 2_000, "expired", "not done after 1000 ms")
    store = store_with("restarting", failures=failures, failed_checkpoints=(failed,))

    marks = [mark for mark in Visit(store).json("/0/series.json")["marks"] if mark["kind"] != "fence"]

    # What was before the first checkpoint has no place in the charts.
    assert [(mark["kind"], mark["at_ms"]) for mark in marks] == [
        ("failed", NOW_MS + 2_000),
        ("restart", NOW_MS + 3_000),
    ]
    assert [mark["label"] for mark in marks] == [
        "checkpoint 3 expired: not done after 1000 ms",
        f"attempt 1 failed: {NASTY}",
    ]


def test_metrics_say_of_a_job_what_its_status_says():
    store = store_with("running", **FULL)
    samples = samples_of(Visit(store).get("/metrics").text)
    label = f'store="{store.url}"'
    found = {name.replace(label, "").replace("{}", ""): float(value) for name, value in samples.items()}

    assert found['arrowstate_job_status{,status="up"}'] == 1
    assert (found["arrowstate_job_ok"], found["arrowstate_job_up"], found["arrowstate_job_attempt"]) == (1, 1, 2)
    assert found["arrowstate_job_failures_total"] == found["arrowstate_job_failed_checkpoints_total"] == 1
    assert found["arrowstate_job_last_failure_timestamp_seconds"] == (NOW_MS - 9_000) / 1000
    assert found['arrowstate_source_lag_seconds{,operator="rows"}'] == 2.5
    assert found['arrowstate_operator_late_rows_total{,operator="rows"}'] == 4
    assert found['arrowstate_operator_dead_rows_total{,operator="rows"}'] == 5
    assert found['arrowstate_task_blocked_ratio{,operator="rows",subtask="0"}'] == 0.25


def test_a_job_that_is_not_up_gives_no_figures_of_its_subtasks():
    samples = samples_of(Visit(store_with("down", **FULL)).get("/metrics").text)

    assert not [name for name in samples if name.startswith("arrowstate_task")]
    assert {
        value for name, value in samples.items() if name.startswith(("arrowstate_job_up", "arrowstate_job_ok"))
    } == {"0"}


def test_every_figure_of_the_alerts_is_one_that_metrics_give():
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    text = Visit(store_with("running", **FULL)).get("/metrics").text
    given = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    labels = set(re.findall(r'(\w+)="', text))

    for rule in rules:
        assert set(re.findall(r"arrowstate_\w+", rule["expr"])) <= given, rule["alert"]
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels, rule["alert"]
        assert f"`{rule['alert']}`" in (ALERTS.parent / "health.md").read_text()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_the_alerts_fire_as_promtool_says(tmp_path):
    for path in (ALERTS, Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(path, tmp_path)

    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        ran = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
