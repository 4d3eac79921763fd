"""The page in a real browser, Debian's chromium: each page opened, used and photographed, in both themes and widths.

Without chromium, or the package playwright, they are skipped with a reason.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.runtime import Job, OutputTable, TableSource
from arrowstate.ui.serving import open_page
from long_form import short_or_long

pytestmark = pytest.mark.turns(3)

HOUR_MS = 3_600_000
CHROMIUM = shutil.which("chromium")
THEMES_AND_WIDTHS = [("light", 1600), ("dark", 400), ("dark", 1600), ("light", 400)]
PAGES = [
    "checkpoints",
    "checkpoint",
    "state?operator=counter&state=pages",
    "state?operator=counter&state=profile&key0=user-37",
    "sql?q=select+*+from+counter.profile+at+(version+%3D%3E+6)+limit+9",
    "diff?operator=counter&state=pages",
    "storage",
    "stores",
    "batches",
    "checkpoint?checkpoint=99",
]
WATCH = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


BROKEN_WORDS = """
() => [...document.querySelectorAll("th, td, dt, dd, h1, h2, label, button, .tabs a")].flatMap((element) => {
  const broken = [];
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    for (const { 0: word, index } of text.data.matchAll(/[A-Za-z]{2,24}/g)) {
      const range = document.createRange();
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      if (new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1) broken.push(word);
    }
  }
  return broken;
})
"""
"Words that stand on two lines."


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine; Debian has it as a package of that name")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page_of(clicks):
    with open_page([clicks, arrowstate.open_store("memory://ui-browser", create=True)]).start() as page:
        yield page


class Look:
    """A tab of the browser and what it complained about."""

    def __init__(self, browser, page, theme="light", width=1280, **options):
        self.context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900}, **options)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(60_000)
        self.tab.add_init_script(WATCH)
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.address = page.address
        self.tab.on("console", self._note)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda asked: self._asked(asked.url))
        self.tab.goto(page.url)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def _note(self, message):
        # A page that is not there is a 404 for the console as well.
        if message.type in ("error", "warning") and "status of 404" not in message.text:
            self.complaints.append(message.text)

    def _asked(self, url):
        if not url.startswith((self.address, "data:")):
            self.foreign.append(url)

    def open(self, path):
        self.tab.goto(f"{self.address}0/{path}")
        self.settle()

    def settle(self):
        """Wait until all parts are there."""
        self.tab.wait_for_function("() => !document.querySelector('.part > .wait[hx-get], .part[hx-trigger] > .wait')")
        self.tab.wait_for_function(
            "() => !document.querySelector('.charts') || document.querySelector('.charts').dataset.points"
        )

    def text(self, selector):
        return self.tab.inner_text(selector)


def looked_at(look, folder, name):
    """Check what holds of every page, and photograph it."""
    axe = Path(pytest.importorskip("axe_playwright_python").__file__).with_name("axe.min.js").read_text()
    look.tab.evaluate(axe)
    found = look.tab.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    serious = [
        (item["id"], [node["html"][:200] for node in item["nodes"]][:3])
        for item in found
        if item["impact"] in ("serious", "critical")
    ]
    look.tab.screenshot(path=folder / f"{name}.png", full_page=True)

    assert look.tab.evaluate(BROKEN_WORDS) == []
    assert serious == []
    assert look.complaints == []
    assert look.foreign == []
    assert look.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), "it is wider than the window"
    assert look.tab.evaluate("() => window.shifted") < 0.1


@pytest.mark.turns(4)
@pytest.mark.parametrize("number", range(len(PAGES)))
def test_every_page_is_whole_in_both_themes_and_at_both_widths(browser, page_of, number, tmp_path):
    begin = number % len(THEMES_AND_WIDTHS)
    for theme, width in (THEMES_AND_WIDTHS[begin:] + THEMES_AND_WIDTHS[:begin])[: short_or_long(1, 4)]:
        with Look(browser, page_of, theme, width) as look:
            look.open(PAGES[number])

            looked_at(look, tmp_path, f"{number}-{theme}-{width}")


def test_which_key_made_the_state_grow_is_found_by_clicks(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("checkpoints")
        look.tab.click("text=What changed since a day ago")
        look.tab.click("table a:has-text('counter.pages')")
        look.settle()
        look.tab.click("section[aria-label='Keys that grew most'] tbody tr:first-child a")
        look.settle()

        assert look.tab.input_value("input[name=key0]") == "bot-7"
        assert "600 rows of the key" in look.text("section[aria-label=Rows]")
        assert "came" in look.text("section[aria-label='History of the key']")
        assert look.complaints == []


def test_what_the_last_deployment_changed_is_found_by_clicks(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("checkpoints")
        look.tab.click("text=What changed from 6 to 7")
        look.settle()

        assert "plan" in look.text("section[aria-label='Counts of changes']")
        assert '"release":"42"' in look.text("main")
        assert look.complaints == []


def test_a_query_is_completed_run_kept_in_the_address_and_downloaded(browser, page_of):
    with Look(browser, page_of, accept_downloads=True) as look:
        look.open("sql")
        look.tab.fill("#query", "select count(*) as n from counter.pa")
        look.tab.press("#query", "End")
        look.tab.press("#query", "Tab")
        look.tab.press("#query", "Control+Enter")
        look.tab.wait_for_selector("#result td")

        assert look.tab.input_value("#query") == "select count(*) as n from counter.pages"
        assert look.text("#result tbody td") == "840"
        assert "q=select+count" in look.tab.url
        with look.tab.expect_download() as saved:
            look.tab.click("text=CSV")
        assert Path(saved.value.path()).read_text() == "n\n840\n"
        look.tab.reload()
        look.tab.wait_for_selector("#result td")
        assert look.complaints == []


def test_a_mistake_in_a_query_is_told_where_the_result_would_be(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("sql?q=select+nothing+from+nowhere")
        look.tab.wait_for_selector("#result .fault")

        assert "nowhere" in look.text("#result")
        assert look.complaints == []


def test_every_byte_is_read_by_a_click(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("checkpoint")
        look.tab.click("text=Read every byte")
        look.tab.wait_for_selector("text=Every byte is whole")

        assert look.complaints == []


def test_a_new_checkpoint_is_shown_without_a_click(browser):
    store = arrowstate.open_store("memory://ui-live", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    with open_page([store]).start() as page, Look(browser, page) as look, store.writer() as writer:
        writer.checkpoint({"op": [backend]})
        look.open("checkpoints")
        writer.checkpoint({"op": [backend]})
        look.tab.wait_for_selector("#table a:text-is('2')")
        look.tab.wait_for_selector("#charts[data-points='2']")

        assert look.complaints == []


def charts_of(look):
    """Return from when to when each chart shows, and the text of its legend."""
    look.tab.wait_for_function(
        "() => [...document.querySelectorAll('.chart')].every(({ dataset }, _, all) =>"
        " dataset.from && dataset.from == all[0].dataset.from)"
    )
    return look.tab.evaluate(
        """() => [...document.querySelectorAll(".chart")].map(
            ({ dataset, innerText }) => [Number(dataset.from), Number(dataset.to), innerText])"""
    )


def test_all_charts_show_the_time_that_a_button_chooses_and_keep_it_at_a_new_checkpoint(browser):
    store = arrowstate.open_store("memory://ui-ranges", create=True)
    now = [HOUR_MS * 1_000]
    store.clock_ms = lambda: now[0]
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)

    def checkpoints(count):
        for _ in range(count):
            now[0] += HOUR_MS // 2
            writer.checkpoint({"op": [backend]})

    with open_page([store]).start() as page, Look(browser, page) as look, store.writer() as writer:
        checkpoints(12)
        look.open("checkpoints")
        assert {to - since for since, to, _ in charts_of(look)} == {11 * 1_800}
        first_s = charts_of(look)[0][0]

        look.tab.click("#ranges button:text-is('1 h')")
        assert [charts_of(look)[0][:2]] * 4 == [chart[:2] for chart in charts_of(look)]
        checkpoints(1)
        look.tab.wait_for_selector("#charts[data-points='13']")
        look.tab.wait_for_function(
            "to => [...document.querySelectorAll('.chart')].every((chart) => chart.dataset.to == to)",
            arg=now[0] / 1_000,
        )

        assert {to - since for since, to, _ in charts_of(look)} == {3_600}
        look.tab.dblclick(".chart[data-chart='rows'] .u-over")
        look.tab.wait_for_function("from => document.querySelector('.chart').dataset.from == from", arg=first_s)
        assert {since for since, *_ in charts_of(look)} == {first_s}
        assert look.complaints == []


def test_a_legend_has_the_newest_figures_where_there_is_no_cursor(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("checkpoints")

        assert "1,157" in charts_of(look)[2][2]


def test_a_cell_of_the_strip_opens_the_rows_of_its_key_group(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("state?operator=counter&state=pages")
        look.tab.click(".strip a:first-child")
        look.settle()

        assert "Key group 0." in look.text("section[aria-label='Rows']")


def test_rows_are_sorted_and_filtered_and_the_values_of_a_column_lead_to_their_rows(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("state?operator=counter&state=profile&column=plan#values")
        of_rows, of_values = "section[aria-label='Rows'] ", "section[aria-label='Values of a column'] "
        keys = look.tab.locator(of_rows + "tbody tr:visible td:first-child")
        first = keys.all_inner_texts()

        look.tab.click(of_rows + "th button:text-is('Key')")
        assert keys.all_inner_texts() == sorted(first)
        look.tab.click(of_rows + "th button:has-text('Key')")
        assert keys.all_inner_texts() == sorted(first, reverse=True)
        look.tab.fill(of_rows + "input[type=search]", "USER-17")
        assert sorted(keys.all_inner_texts()) == sorted(key for key in first if key.startswith("user-17"))

        look.tab.click(of_values + "tbody a:has-text('gold')")
        look.settle()
        assert "plan" in look.text("#result thead")
        assert set(look.tab.locator("#result table:first-of-type tbody td:nth-child(3)").all_inner_texts()) == {"gold"}
        assert look.complaints == []


def test_a_job_is_drawn_while_it_runs(browser, tmp_path):
    job = Job("memory://ui-browser-job", parallelism=2)
    rows = pa.table({"user": [f"u{number % 50}" for number in range(5_000)]})
    job.source(TableSource(rows), uid="users").sink(OutputTable("copy"))
    with job.start(mode="threads") as running, running.ui() as page, Look(browser, page) as look:
        running.wait()
        look.open("job")
        look.tab.wait_for_selector("#job svg text")

        looked_at(look, tmp_path, "job")


def test_times_are_those_of_the_reader_with_utc_on_hover(browser, page_of):
    with Look(browser, page_of, timezone_id="Asia/Tokyo") as look:
        look.open("checkpoints")
        shown, utc = look.tab.eval_on_selector("tbody time", "(time) => [time.textContent, time.title]")

        assert (shown, utc) == ("2025-11-24 05:26:40", "2025-11-23 20:26:40 UTC")
        assert look.text("#zone") == "Asia/Tokyo"


def test_it_is_used_by_keyboard_alone(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("checkpoints")
        look.tab.keyboard.press("Tab")
        skip = look.tab.evaluate("() => document.activeElement.textContent")
        look.tab.keyboard.press("Enter")
        look.tab.keyboard.press("Tab")
        look.tab.keyboard.press("Enter")
        look.tab.wait_for_url("**/checkpoint?checkpoint=12")

        assert skip == "Skip to the content"
        assert look.complaints == []


def test_a_query_says_that_it_runs_and_a_button_stops_it(browser, page_of):
    with Look(browser, page_of) as look:
        look.open("sql")
        look.tab.fill("#query", "select count(*) from range(1000000000000) where hash(range) = 1")
        look.tab.press("#query", "Control+Enter")
        look.tab.wait_for_selector("#result >> text=/Running.*[1-9]\\d* s/")
        look.tab.click("#result >> text=Stop")
        look.tab.wait_for_selector("#result .fault")
        stopped = look.text("#result")
        look.tab.press("#query", "Control+Enter")
        look.tab.wait_for_selector("#result >> text=Running")
        look.tab.fill("#query", "select 42 as answer")
        look.tab.press("#query", "Control+Enter")
        look.tab.wait_for_selector("#result tbody td")

        assert "the query was stopped" in stopped
        assert look.text("#result tbody td") == "42"
        assert look.complaints == []


def test_without_javascript_forms_links_and_parts_work_and_the_page_says_what_is_missing(browser, page_of):
    with Look(browser, page_of, java_script_enabled=False) as look:
        for name in ("checkpoints", "checkpoint", "diff", "storage", "stores", "state?operator=counter&state=pages"):
            look.tab.goto(f"{look.address}0/{name}")
            assert "Without JavaScript" in look.text(".noscript"), name
        look.tab.click("section[aria-label='Largest keys'] a")
        keys = look.text("main")
        look.tab.click("text=bot-7")
        key = look.tab.input_value("input[name=key0]")
        look.tab.goto(f"{look.address}0/sql")
        told = look.text(".noscript")
        look.tab.fill("#query", "select 'nan'::double as answer")
        look.tab.click("button:text-is('Run')")

        assert "600" in keys
        assert key == "bot-7"
        assert "no button stops a query" in told
        assert look.text("main tbody td") == "NaN"
        assert look.complaints == []
