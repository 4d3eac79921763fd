"""`arrowstate sql`, and its shell: queries line by line, with a history, completion and commands that begin with a dot.

The line editor is imported where there is a terminal.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from arrowstate.cli import sql
from arrowstate.cli.formats import FORMATS, Format
from arrowstate.cli.messages import tell_error
from arrowstate.cli.output import print_table, say
from arrowstate.cli.running_queries import interruptible
from arrowstate.cli.shell_names import CatalogNames, CheckpointNames, Names
from arrowstate.cli.sql import format_asked, opened, show, statements_of
from arrowstate.discovery import StateCatalog
from arrowstate.errors import ArrowStateError, InvalidInputError, MissingDependencyError
from arrowstate.store import Snapshot

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_HELP = (
    (".tables", "the states and other tables that a query may read"),
    (".schema [TABLE]", "the columns of a table, or of all states"),
    (".checkpoint [ID|TAG|TIME]", "go on with another checkpoint, by default the newest"),
    (".output FORMAT [FILE]", f"print or write results as {', '.join(('table', *FORMATS))}"),
    (".timing on|off", "whether to say how long a query took"),
    (".help", "this list"),
    (".quit", "leave, as Ctrl-D does"),
)
COMMANDS = tuple(usage.split()[0] for usage, _ in _HELP)


def run(options: argparse.Namespace) -> int:
    """Run the queries of the options, or of the pipe; a terminal without a query gets a shell."""
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    if options.query is None and options.file is None and is_terminal:
        return _run_shell(options)
    return sql.run(options)


def _run_shell(options: argparse.Namespace) -> int:
    """Read queries from the terminal and print their results, until the user leaves."""
    with ExitStack() as held:
        shell = _Shell(options, held)
        session = _session(shell)
        say(f"{shell.names.title} of {options.store}; .help says more")
        while not shell.has_left:
            try:
                shell.do(session.prompt("arrowstate> ", prompt_continuation="        ... "))
            except KeyboardInterrupt:
                continue
            except EOFError:
                break
    return 0


def is_complete(text: str) -> bool:
    """Whether a text may be run: a command, nothing, or SQL whose last statement ends with a semicolon."""
    import duckdb

    if not text.strip() or text.lstrip().startswith("."):
        return True
    tokens = [(start, kind) for start, kind in duckdb.tokenize(text) if kind != duckdb.token_type.comment]
    if not tokens:
        return False
    start, kind = tokens[-1]
    # Places are counted in bytes.
    return kind == duckdb.token_type.operator and text.encode()[start : start + 1] == b";"


def history_path() -> Path:
    """Return where the history is kept."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    folder = given if given.is_absolute() else Path.home() / ".local" / "state"
    return folder / "arrowstate" / "sql_history"


def _names_of(queried: Snapshot | StateCatalog) -> Names:
    return CheckpointNames(queried) if isinstance(queried, Snapshot) else CatalogNames(queried)


class _Shell:
    """What the commands of the shell change, and what runs."""

    def __init__(self, options: argparse.Namespace, held: ExitStack) -> None:
        self._options = options
        self._held = held
        self._format: Format | None = format_asked(options)
        self._output: str | None = options.output
        self._timing = True
        self.has_left = False
        self.names = _names_of(held.enter_context(opened(options)))

    def do(self, text: str) -> None:
        """Run what was entered; an error is told, and so is that it was interrupted."""
        try:
            if text.lstrip().startswith("."):
                self._command(text)
                return
            for query in statements_of(text):
                self._query(query)
        except ArrowStateError as error:
            notes = getattr(error, "__notes__", ())
            tell_error(type(error).__name__, "\n".join([str(error), *notes]), as_json=False)
        except KeyboardInterrupt:
            say("interrupted")

    def _query(self, query: str) -> None:
        started = time.perf_counter()
        queried, expired = self.names.queried, self._options.expired
        interruptible(partial(show, queried, query, self._format, self._output, expired=expired))
        if self._output is not None:
            say(f"the result is in {self._output}")
        if self._timing:
            say(f"{time.perf_counter() - started:.3f} s")

    def _command(self, text: str) -> None:
        try:
            name, *arguments = shlex.split(text)
        except ValueError as error:
            raise InvalidInputError(f"{text.strip()}: {error}") from error
        usage = next((usage for usage, _ in _HELP if usage.split()[0] == name), None)
        if usage is None:
            raise InvalidInputError(f"there is no command {name}; there are {', '.join(COMMANDS)}")
        words = usage.split()[1:]
        if not sum(not word.startswith("[") for word in words) <= len(arguments) <= len(words):
            raise InvalidInputError(f"{text.strip()} has {len(arguments)} arguments; it is {usage}")
        commands: dict[str, Callable[..., None]] = {
            ".tables": self._print_tables,
            ".schema": self._print_schema,
            ".checkpoint": self._choose_checkpoint,
            ".output": self._choose_output,
            ".timing": self._choose_timing,
            ".help": self._print_help,
            ".quit": self._leave,
        }
        commands[name](*arguments)

    def _print_tables(self) -> None:
        print_table(["table", "kind", "rows"], self.names.tables)

    def _print_schema(self, table: str | None = None) -> None:
        tables = self.names.states if table is None else [table]
        rows = [(name, *column) for name in tables for column in self.names.columns(name)]
        print_table(["table", "column", "type"], rows)

    def _choose_checkpoint(self, reference: str | None = None) -> None:
        options = argparse.Namespace(**{**vars(self._options), "checkpoint": reference})
        with ExitStack() as held:
            # The one before is let go once the other one is there.
            self.names = _names_of(held.enter_context(opened(options)))
            self._held.close()
            self._held.enter_context(held.pop_all())
        say(self.names.title)

    def _choose_output(self, format: str, path: str | None = None) -> None:
        if format != "table" and format not in FORMATS:
            raise InvalidInputError(f"there is no format {format}; there are {', '.join(('table', *FORMATS))}")
        if path is None and format in ("parquet", "arrow"):
            raise InvalidInputError(f"{format} is no text for a terminal; give a file, as in .output {format} FILE")
        self._format = None if format == "table" else cast("Format", format)
        self._output = path

    def _choose_timing(self, on: str) -> None:
        if on not in ("on", "off"):
            raise InvalidInputError(f".timing takes on or off, got {on}")
        self._timing = on == "on"

    def _print_help(self) -> None:
        print_table(["command", "what it does"], _HELP)
        say("A query ends with a semicolon. Ctrl-C ends one that runs, or drops the line; Tab completes.")

    def _leave(self) -> None:
        self.has_left = True


def _session(shell: _Shell) -> PromptSession[str]:
    try:
        from prompt_toolkit import PromptSession
    except ImportError as error:
        raise MissingDependencyError(
            "the shell of queries (not `arrowstate sql STORE QUERY`)", "prompt_toolkit", "cli"
        ) from error

    from arrowstate.cli.shell_completion import ShellCompleter

    return PromptSession(
        history=_history(history_path()),
        completer=ShellCompleter(lambda: shell.names, COMMANDS),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_bindings(),
    )


def _history(path: Path) -> History:
    """Return the history of the user, which nobody else may read; one of this session where it cannot be kept."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _bindings() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings
