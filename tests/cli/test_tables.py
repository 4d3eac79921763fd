"""Tables that people read: in a narrow terminal too, and with whatever states hold."""

import re
import shutil

import pyarrow as pa
import pytest
from rich.console import Console

import arrowstate
from arrowstate.cli import main
from arrowstate.cli.output import print_table, progress_bar
from arrowstate.cli.run_table import tasks_table
from arrowstate.cli.tables import table_text
from arrowstate.runtime.status import JobStatus, TaskStatus

BORDERS = re.compile("[┏━┳┓┃┡╇┩│└─┴┘]+")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A store with long names and types, several operators, runs that died, and two checkpoints."""
    folder = tmp_path_factory.mktemp("tables") / "store"
    key = pa.schema([("user", pa.string())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
    clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks_of_the_day", pa.int64(), reduce="sum"))
    visit = pa.struct([("page", pa.string()), ("at", pa.timestamp("ms")), ("took", pa.duration("ms"))])
    backend.state(arrowstate.ValueStateDescriptor("visit", visit)).update_batch(
        ["u1"], [{"page": "a page of many words that goes on and on", "at": 0, "took": 17}]
    )
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add(17)
    store = arrowstate.open_store(folder, create=True)
    with store.writer(compaction=None) as writer:
        for rows in (10_000, 8_000):
            clicks.add_batch([f"u{number}" for number in range(rows)], [1_234_567] * rows)
            operators = {"counter-of-clicks": [backend]}
            writer.checkpoint(operators, operator_states={"source-of-clicks": [source]}, properties={"offset": rows})
    store.tag("before-the-great-upgrade", 1)
    return folder


VISITS = (
    'select user, clicks_of_the_day * 1000000, visit from "counter-of-clicks".clicks_of_the_day left join '
    '"counter-of-clicks".visit using (user) order by visit is null, user limit 3'
)
COMMANDS = {
    "list": [],
    "show": [],
    "show --state": ["--state", "counter-of-clicks.clicks_of_the_day"],
    "sql": [VISITS],
    "edit": ["--delete-key", "counter-of-clicks", "u1"],
    "diff": ["1"],
    "diff --rows": ["1", "2", "--state", "counter-of-clicks.clicks_of_the_day", "--rows"],
    "lookup": ["counter-of-clicks.visit", "u1"],
    "history": ["counter-of-clicks.clicks_of_the_day", "u1"],
    "tags": [],
    "restore-check": [],
    "verify": [],
    "diagnose": [],
    "gc": [],
    "compact": ["--max-amplification", "1.1"],
}
"""What is printed for each command that prints a table; a command may have several."""


def printed(capsys, monkeypatch, columns, name, store):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([name.split()[0], str(store), *COMMANDS[name]]) == 0
    return capsys.readouterr().out


def words(text):
    return set(BORDERS.sub(" ", text).split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_table_fits_60_columns_and_no_word_of_it_is_broken(pristine, tmp_path, capsys, monkeypatch, name):
    store = shutil.copytree(pristine, tmp_path / "store")

    wide = printed(capsys, monkeypatch, 1000, name, store)
    narrow = printed(capsys, monkeypatch, 60, name, store)

    assert "┏" in wide
    of_tables = [line for line in narrow.splitlines() if BORDERS.match(line)]
    assert [line for line in of_tables if len(line) > 60] == []
    assert {word for word in words(narrow) - words(wide) if any(letter.isdigit() for letter in word)} == set()


def test_a_list_in_60_columns_leaves_out_what_matters_least(pristine, capsys, monkeypatch):
    narrow = printed(capsys, monkeypatch, 60, "list", pristine)

    assert re.findall(r"[\w]+", narrow.splitlines()[1]) == ["id", "committed", "bytes", "rows"]
    assert narrow.count("\n") == 6


def test_what_fits_in_no_way_is_a_list_of_its_columns(pristine, capsys, monkeypatch):
    narrow = printed(capsys, monkeypatch, 60, "show --state", pristine)

    (run, *_) = [line.split(maxsplit=1)[1] for line in narrow.splitlines() if line.startswith("run ")]
    assert re.fullmatch(r"[0-9a-f]{32}\.arrow", run)
    assert "\nkey groups  0-127\n" in narrow


def test_a_pipe_has_all_columns_in_one_line_unless_columns_are_asked_for(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)

    print_table(["word"] * 40, [["abcdefghij"] * 40])

    assert len(capsys.readouterr().out.splitlines()[0]) == 40 * 13 + 1


def text_of(columns, rows, width=80, **options):
    return table_text(columns, rows, [[str(value) for value in row] for row in rows], width=width, **options)


def test_texts_go_on_in_the_next_line_between_words():
    found = text_of(["id", "why"], [(10_000, "it stands between two others that are kept")], width=32)

    assert found.splitlines()[3:] == [
        "│ 10000 │ it stands between    │",
        "│       │ two others that are  │",
        "│       │ kept                 │",
        "└───────┴──────────────────────┘",
    ]


def test_wide_characters_take_two_columns():
    found = text_of(["city"], [("東京",), ("Rome",)])

    assert found.splitlines()[3:5] == ["│ 東京 │", "│ Rome │"]


def test_a_text_does_not_steer_the_terminal():
    found = text_of(["name"], [("\x1b[31mred\x07",), ("two\nlines",)])

    assert found.splitlines()[3:6] == ["│ \\x1b[31mred\\x07 │", "│ two             │", "│ lines           │"]


def test_a_table_too_wide_is_split_where_that_is_asked_for():
    found = text_of(["a", "b", "c"], [("x" * 20, "y" * 20, "z" * 20)], width=50, split=2)

    assert [re.findall(r"\w+", line) for line in found.splitlines() if "┃" in line] == [["a", "b"], ["a", "c"]]


def test_lines_are_drawn_with_what_the_encoding_has():
    found = text_of(["id", "name"], [(1, "one"), (20, "two")], ascii_only=True)

    assert found == "+----+------+\n| id | name |\n+----+------+\n|  1 | one  |\n| 20 | two  |\n+----+------+"


def test_the_table_of_a_running_job_fits_60_columns():
    task = TaskStatus("enriched-clicks", 0, 1_234_567, 98_765.4, 0.97, 0.5, 123_456, None, False, lag_ms=123_456)
    status = JobStatus("running", 1, (), (), (task,))

    console = Console(width=60)
    with console.capture() as captured:
        console.print(tasks_table(status, 60))

    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 60
    assert "1,234,567" not in captured.get()
    assert {"98,765", "123,456", "97%", "123.5"} <= words(captured.get())


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_alone(capsys, monkeypatch, is_terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)

    with progress_bar("verifying") as bar:
        bar.update(total=3)
        bar.advance()
        bar.update(total=3, completed=2)

    shown = capsys.readouterr().err
    assert ("verifying" in shown, "2/3" in shown) == (is_terminal, is_terminal)
