"""The shell of `arrowstate sql`, on a pseudo terminal."""

import json
import os
import pty
import re
import select
import stat
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompt_toolkit.document import Document

import arrowstate
from arrowstate.cli.shell import COMMANDS, history_path, is_complete
from arrowstate.cli.shell_completion import ShellCompleter
from arrowstate.cli.shell_names import CheckpointNames
from processes import python

FOREVER = "select count(*) from range(1000000000) a cross join range(1000000) b where a.range + b.range = 7;"
SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
PATIENCE_S = 30
PROMPT = "arrowstate>"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with two checkpoints, the first of which is tagged, and names that need quotes."""
    folder = tmp_path_factory.mktemp("shell") / "store"
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    other = arrowstate.KeyedStateBackend(key=pa.schema([("page", pa.string())]), max_parallelism=128)
    seen = pa.struct([("seen by", pa.string()), ("order", pa.int64())])
    other.state(arrowstate.ValueStateDescriptor("select", seen)).update_batch(["/"], [{"seen by": "ann", "order": 1}])
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add_all([17, 4])
    opened = arrowstate.open_store(folder, create=True)
    with opened.writer() as writer:
        for number in (3, 4):
            clicks.add_batch(["ann", "bob"], [number, 1])
            writer.checkpoint({"counter": [backend], "page-views": [other]}, operator_states={"source": [source]})
    opened.tag("gold", 1)
    return str(folder)


class Terminal:
    """The shell in a terminal of 100 columns; what it shows is read without colours and movements."""

    def __init__(self, store, home, *options):
        self._master, slave = pty.openpty()
        environment = {
            **os.environ,
            "TERM": "xterm",
            "COLUMNS": "100",
            "LINES": "50",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "XDG_STATE_HOME": str(home),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "arrowstate", "sql", store, *options],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._unread = ""

    def __enter__(self):
        self.expect(PROMPT)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def type(self, keys):
        os.write(self._master, keys.encode())

    def enter(self, line):
        """Type a line, and return what is shown until there is a prompt again."""
        self.type(f"{line}\r")
        # A line may be shown several times; once it is accepted, the next one begins.
        self.expect(re.compile(f"{re.escape(line[-8:])} *\n"))
        return self.expect(PROMPT)

    def expect(self, text):
        """Return what is shown up to a text or pattern."""
        pattern = re.compile(re.escape(text)) if isinstance(text, str) else text
        end = time.monotonic() + PATIENCE_S
        while (found := pattern.search(self._unread)) is None:
            ready, _, _ = select.select([self._master], [], [], max(end - time.monotonic(), 0))
            assert ready, f"{text!r} was not shown after {self._unread!r}"
            self._unread += SEQUENCES.sub("", os.read(self._master, 1 << 16).decode())
        shown, self._unread = self._unread[: found.start()], self._unread[found.end() :]
        return shown

    def wait_for_work(self):
        """Return when the process has computed for a while."""
        before = self._processor_seconds()
        while self._processor_seconds() < before + 0.3:
            select.select([], [], [], 0.02)

    def _processor_seconds(self):
        with open(f"/proc/{self._process.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def leave(self, keys="\x04"):
        """Leave, and return the exit code."""
        self.type(keys)
        return self._process.wait(PATIENCE_S)


def test_queries_of_several_lines_and_commands_are_run_and_errors_keep_the_shell(store, tmp_path):
    with Terminal(store, tmp_path) as terminal:
        terminal.type("select 'a;' as text,\r")
        terminal.expect("...")
        answered = terminal.enter("6 * 7 as answer;")
        refused = terminal.enter("select clicsk from counter.clicks;")
        unknown = terminal.enter(".nothing")
        tables = terminal.enter(".tables")
        schema = terminal.enter(".schema counter.clicks")
        terminal.enter(".timing off")
        untimed = terminal.enter("select clicks from counter.clicks order by clicks;")
        code = terminal.leave()

    assert "│ a;   │     42 │" in answered
    assert re.search(r"\n\d+\.\d{3} s\n", answered)
    assert 'column "clicsk" not found' in refused
    assert "there is no command .nothing; there are .tables, .schema" in unknown
    assert re.search(r"counter\.clicks +│ reducing +│ +2 │", tables)
    assert re.search(r'"page-views"\."select" +│ value +│ +1 │', tables)
    assert "arrowstate.tags" in tables
    assert re.search(r"counter\.clicks │ clicks +│ BIGINT", schema)
    assert "│      2 │\n│      7 │" in untimed
    assert not re.search(r"\d+\.\d{3} s\n", untimed)
    assert code == 0


def test_ctrl_c_ends_a_query_and_keeps_the_shell_and_the_history_is_kept_for_the_next_one(store, tmp_path):
    with Terminal(store, tmp_path) as terminal:
        # The first result says that the terminal is no longer read as keys.
        terminal.type(f"select 'of the first' as a; {FOREVER}\r")
        terminal.expect("│ of the first │")
        terminal.wait_for_work()
        terminal.type("\x03")
        terminal.expect(f"interrupted\n{PROMPT}")
        terminal.type("select a line that is given up\x03")
        terminal.expect(re.compile("given up *\n"))
        terminal.expect(PROMPT)
        after = terminal.enter("select 40 + 2 as answer;")
        left = terminal.leave(".quit\r")
    kept = tmp_path / "arrowstate" / "sql_history"
    with Terminal(store, tmp_path) as terminal:
        terminal.type("\x1b[A\x1b[A")
        terminal.expect("as answer;")
        again = terminal.enter("")

    assert "│     42 │" in after
    assert left == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "│     42 │" in again


def test_names_are_completed_and_results_go_where_they_are_sent(store, tmp_path):
    with Terminal(store, tmp_path, "--lease") as terminal:
        terminal.type('select "user", clicks from coun\t')
        terminal.expect("counter.clicks")
        completed = terminal.enter(" where clicks > 6;")
        held = [pin.checkpoint_id for pin in leases(store)]
        moved = terminal.enter(".checkpoint gold")
        held += [pin.checkpoint_id for pin in leases(store)]
        missing = terminal.enter(".checkpoint silver")
        terminal.enter(f".output parquet '{tmp_path / 'a file.parquet'}'")
        written = terminal.enter("from counter.clicks order by clicks;")
        refused = terminal.enter(".output parquet")
        terminal.enter(".output json")
        printed = terminal.enter("select clicks from counter.clicks order by clicks;")
        terminal.leave()

    assert re.search(r"│ ann  │      7 │", completed)
    assert "checkpoint 1" in moved
    assert "silver" in missing
    assert held == [2, 1]
    assert leases(store) == []
    assert f"the result is in {tmp_path / 'a file.parquet'}" in written
    assert pq.read_table(tmp_path / "a file.parquet")["clicks"].to_pylist() == [1, 3]
    assert "give a file" in refused
    assert json.loads(printed[printed.rindex("[") : printed.rindex("]") + 1]) == [{"clicks": 1}, {"clicks": 3}]


def leases(store):
    from arrowstate.log.pins import read_pins

    return [pin for pin in read_pins(arrowstate.open_store(store).storage) if pin.tag is None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("  ", True),
        (".tables", True),
        ("select 1", False),
        ("select 1;", True),
        ("select 'Łódź';", True),
        ("select 1; -- done", True),
        ("select 1 -- not yet;", False),
        ("select ';", False),
        ('select ";', False),
        ("/* ;", False),
        ("select 1;\nselect 2", False),
        ("-- only a remark", False),
    ],
)
def test_a_text_is_run_when_its_last_statement_ends(text, expected):
    assert is_complete(text) == expected


@pytest.mark.parametrize(
    ("typed", "offered", "left_out"),
    [
        ("sel", {"select"}, {"counter.clicks"}),
        ("SEL", {"SELECT"}, {"select"}),
        ("select * from ", {"counter.clicks", '"page-views"."select"', "source.offsets", "arrowstate.tags"}, {"where"}),
        ("select * from co", {"counter.clicks"}, {"source.offsets", "columns"}),
        ('select * from "page', {'"page-views"."select"'}, {"counter.clicks"}),
        ("from arrowstate.ch", {"arrowstate.checkpoints", "arrowstate.changes(", "arrowstate.change_counts("}, set()),
        ("from counter.clicks where cl", {"clicks"}, {"counter.clicks"}),
        ("from counter.clicks c where c.us", {"c.user"}, {"counter.clicks"}),
        ('from "page-views"."select" where ', {"page", '"seen by"', '"order"'}, {"clicks"}),
        ("from arrowstate.tags where ta", {"tag"}, {"clicks"}),
        (".sc", {".schema"}, {".tables"}),
        (".schema cou", {"counter.clicks"}, {"source.offsets"}),
        (".checkpoint ", {"gold"}, {"counter.clicks"}),
        (".output ", {"table", "csv", "parquet"}, {"on"}),
        (".timing ", {"on", "off"}, {"csv"}),
        (".help ", set(), {"on"}),
    ],
)
def test_what_fits_is_offered(store, typed, offered, left_out):
    names = CheckpointNames(arrowstate.open_store(store).latest())

    found = {item.text for item in ShellCompleter(lambda: names, COMMANDS).get_completions(Document(typed), None)}

    assert offered <= found
    assert not left_out & found


def test_the_history_is_kept_in_the_state_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "arrowstate" / "sql_history"

    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert history_path() == tmp_path / "home" / ".local" / "state" / "arrowstate" / "sql_history"


def test_the_line_editor_is_loaded_where_there_is_a_terminal():
    script = "import sys; from arrowstate.cli import main; main(['--help']); print(*sys.modules)"
    done = python("-c", script, check=True)

    modules = done.stdout.split()
    assert "arrowstate.cli.parser" in modules
    assert not {"prompt_toolkit", "shtab", "duckdb", "rich.console"} & set(modules)
