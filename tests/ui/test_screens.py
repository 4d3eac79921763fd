"""The pictures of the documentation: the story that docs/operating/page.md tells, in a store that has it.

`ARROWSTATE_SCREENS=docs/images tools/test tests/ui/test_screens.py` makes them again.
"""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.log.jobs import FailedCheckpoint, Failure, JobReport, OperatorReport, as_json, put_report
from arrowstate.runtime import FunctionSink, GeneratorSource, Job
from arrowstate.ui.serving import open_page
from arrowstate_formats.documents import JobDocument

from .test_browser import Look, browser, looked_at  # noqa: F401 (a fixture)

pytestmark = pytest.mark.turns(4)

HOUR_MS = 3_600_000
BEGIN_MS = 1_772_323_200_000
CHECKPOINTS, DEPLOYED = 48, 24
USERS = [f"user-{number}" for number in range(400)]


@pytest.fixture(scope="module")
def sessions():
    """A checkpoint an hour for two days; with the release of the second day a crawler and a column come."""
    store = arrowstate.open_store("memory://sessions", create=True)
    now = [BEGIN_MS]
    store.clock_ms = lambda: now[0]
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    profile = pa.struct([("city", pa.string())])
    writer = store.writer(properties={"release": "41"})
    for number in range(CHECKPOINTS):
        if number == DEPLOYED:
            backend = store.latest().restore("sessions")
            profile = pa.struct([("city", pa.string()), ("plan", pa.string())])
            writer = store.writer(properties={"release": "42"})
        pages = backend.state(arrowstate.ListStateDescriptor("pages", pa.string()))
        profiles = backend.state(arrowstate.ValueStateDescriptor("profile", profile))
        now[0] += HOUR_MS
        users = USERS[number % 5 :: 5]
        pages.add_batch(users, ["/start"] * len(users))
        if number >= DEPLOYED:
            users = [*users[:40], "crawler-7"]
            pages.add_batch(["crawler-7"] * 175, [f"/page/{number}/{place}" for place in range(175)])
        row = {"city": "Oslo" if number % 3 else "Lima"} | ({"plan": "gold"} if number >= DEPLOYED else {})
        profiles.update_batch(users, pa.array([row] * len(users), profile))
        properties = {"offset": number * 1_000}
        writer.checkpoint({"sessions": [backend]}, watermark=now[0] - 4_000 - 300 * (number % 7), properties=properties)
    store.tag("before-42", DEPLOYED)
    report = JobReport(
        since_ms=now[0] - 9 * HOUR_MS,
        interval_ms=HOUR_MS,
        attempt=2,
        restarts=1,
        completed_id=CHECKPOINTS,
        completed_at_ms=now[0],
        failures=(Failure(now[0] - 9 * HOUR_MS, 1, "ConnectionError", "the table of sessions cannot be reached"),),
        failed_checkpoints=(
            FailedCheckpoint(CHECKPOINTS - 8, 0, now[0] - 10 * HOUR_MS, "expired", "not done after 600000 ms"),
        ),
        failed_count=1,
        operators=(OperatorReport("sessions", busy=0.8, minutes=tuple((0, 0.3 + n / 120, n / 90) for n in range(60))),),
    )
    document = JobDocument(
        writer_epoch=2,
        holder="clicks-1",
        lease_ms=10_000,
        renewal=0,
        state="running",
        written_at_ms=now[0],
        report=as_json(report),
    )
    put_report(store.storage, document)
    return store


def saved(look, folder, name):
    """Check a page and make its picture, where it is asked for."""
    looked_at(look, folder, name)
    place = os.environ.get("ARROWSTATE_SCREENS")
    look.tab.screenshot(path=Path(place or folder) / f"page-{name}.png")


def test_the_story_of_the_page_is_found_by_its_clicks(browser, sessions, tmp_path):  # noqa: F811
    with open_page([sessions]).start() as page, Look(browser, page, width=1_280) as look:
        look.open("checkpoints")
        saved(look, tmp_path, "checkpoints")
        look.tab.click("text=What changed since a day ago")
        look.tab.click("table a:has-text('sessions.pages')")
        look.settle()
        grown = "section[aria-label='Keys that grew most'] tbody tr"
        assert look.text(f"{grown}:nth-child(1)").split()[:2] == ["crawler-7", "+4,200"]
        assert look.text(f"{grown}:nth-child(2)").split()[1] == "+5"
        saved(look, tmp_path, "keys")

        look.tab.click(f"{grown}:first-child a")
        look.settle()
        # 4,200 of 8,040 rows are in one of 128 key groups.
        assert "66.87" in look.text("section[aria-label='Key groups']")
        saved(look, tmp_path, "state")

        look.open("state?operator=sessions&state=profile&column=plan")
        look.tab.evaluate("document.getElementById('values').scrollIntoView()")
        saved(look, tmp_path, "values")

        look.open("diff?before=24&after=25&operator=sessions&state=profile")
        assert "plan" in look.text("section[aria-label='Counts of changes']")
        saved(look, tmp_path, "deployment")

        look.open("sql?q=select+city,+count(*)+as+users+from+sessions.profile+group+by+city+order+by+users+desc")
        saved(look, tmp_path, "sql")


def numbers(first, count):
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def slowly(rows):
    time.sleep(len(rows) / 20_000)


def test_a_job_with_back_pressure_shows_where_it_comes_from(browser, tmp_path):  # noqa: F811
    job = Job("memory://clicks", parallelism=2)
    source = GeneratorSource(numbers, pa.schema([("n", pa.int64())]), splits=2)
    job.source(source, uid="clicks").rebalance().sink(FunctionSink(slowly), uid="table")
    with job.start(mode="threads") as running, running.ui() as page, Look(browser, page, width=1_280) as look:
        look.open("job")
        look.tab.wait_for_selector("#job svg .blocked-4", state="attached")

        saved(look, tmp_path, "job")
