"""Queries have slots of their own, are stopped, and end with whoever asked for them."""

import http.client
import threading
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

import pytest

from arrowstate.ui import processes
from arrowstate.ui.serving import open_page
from arrowstate.ui.site import Limits
from arrowstate.ui.work import Queries
from stores import until

ENDLESS = "select count(*) + {number} from range(1000000000000) where hash(range) = {number}"


BEGAN = []
"""Of each query that began, the page that asked for it."""


@pytest.fixture(scope="module")
def served(clicks):
    """A page that is served, and what asks it."""
    begin = Queries._begin

    async def noted(queries, stop, is_gone, until):
        await begin(queries, stop, is_gone, until)
        BEGAN.append(queries._asked[stop])

    with (
        pytest.MonkeyPatch.context() as patch,
        open_page([clicks], limits=Limits(sql_seconds=30, page_seconds=1)).start() as page,
    ):
        patch.setattr(Queries, "_begin", noted)
        yield page


@contextmanager
def asked(page, path, /, **form):
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(page.url).port, timeout=60)
    headers = {"Authorization": f"Bearer {page.bearer}", "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST" if form else "GET", f"/0/{path}", urlencode(form), headers)
    try:
        yield connection
    finally:
        connection.close()


def status(page, path, /, **form):
    with asked(page, path, **form) as connection:
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def until_free(page):
    """Wait until a query runs at once again."""
    until(lambda: status(page, "run.json", q="select 1")[0] == 200)


@pytest.mark.parametrize("path", ["run", "run.json", "run.csv", "run.parquet"])
def test_queries_whose_askers_have_gone_end_and_the_pages_stand(served, path):
    for number in range(6):
        before = len(BEGAN)
        with asked(served, path, q=ENDLESS.format(number=number)):
            until(lambda before=before: len(BEGAN) > before)

    assert status(served, "checkpoints")[0] == 200
    until_free(served)


def test_queries_that_run_take_no_other_page_away(served):
    threads = []
    answers = []
    for number in range(6):
        form = {"q": ENDLESS.format(number=number), "page": f"page-{number}"}
        ask = lambda form=form: answers.append(status(served, "run.json", **form))  # noqa: E731
        threads.append(threading.Thread(target=ask, daemon=True))
        threads[-1].start()

    # Three run, and the others are refused after the patience of a page.
    while len(answers) < 3:
        pages = [status(served, path)[0] for path in ("checkpoints", "sql", "storage")]
        assert pages == [200] * 3
    for number in range(6):
        status(served, "stop", page=f"page-{number}")
    for thread in threads:
        thread.join(20)

    assert sorted(code for code, _ in answers) == [400] * 3 + [503] * 3
    assert sum("the query was stopped" in text for _, text in answers) == 3
    until_free(served)


@pytest.mark.parametrize("path", ["run.json", "run.csv", "run.parquet"])
def test_a_page_that_asks_anew_stops_what_it_asked_before(served, path):
    answers = []
    form = {"q": ENDLESS.format(number=1), "page": f"own-{path}"}
    first = threading.Thread(target=lambda: answers.append(status(served, path, **form)), daemon=True)
    first.start()
    until(lambda: form["page"] in BEGAN)

    second = status(served, "run.json", q="select 42 as a", page=f"own-{path}")
    first.join(20)

    assert second[0] == 200
    assert (answers[0][0], "another query of the same page" in answers[0][1]) == (400, True)


@pytest.mark.parametrize(
    "query",
    [
        "select range from range(1000000000000) where hash(range) = 1",
        "select range from range(1000000000000) where range < 100 or hash(range) = 1",
        "select sum(a.range) from range(10000000) a, range(10000000) b",
    ],
)
@pytest.mark.parametrize("path", ["run.json", "run.csv", "run"])
def test_a_query_out_of_time_says_so_and_is_no_fault_of_the_storage(clicks, query, path):
    with open_page([clicks], limits=Limits(sql_seconds=0.3)).start() as page:
        code, text = status(page, path, q=query)

    assert code == 400
    assert "the query was stopped after 0.3 s" in text
    assert "storage failed" not in text


def test_a_query_that_is_stopped_before_it_runs_never_runs(served, monkeypatch):
    preparing, goes_on = threading.Event(), threading.Event()
    ready = processes.ready

    def slowly():
        preparing.set()
        goes_on.wait(20)
        return ready()

    monkeypatch.setattr(processes, "ready", slowly)
    answers = []
    form = {"q": ENDLESS.format(number=1), "page": "impatient"}
    asker = threading.Thread(target=lambda: answers.append(status(served, "run.json", **form)), daemon=True)
    asker.start()
    preparing.wait(20)
    status(served, "stop", page="impatient")
    goes_on.set()
    asker.join(20)

    assert (answers[0][0], "the query was stopped" in answers[0][1]) == (400, True)
    assert "impatient" not in BEGAN


def test_what_runs_nowhere_is_stopped_without_a_word(served):
    assert status(served, "stop", page="nobody")[0] == 204
    assert status(served, "stop", q="select 1")[0] == 404
