"""What `arrowstate` takes: its commands and their options."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn, get_args

from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.cli.argparse_internals import Commands
from arrowstate.cli.formats import FORMATS
from arrowstate.cli.messages import tell_error
from arrowstate.files.validation import Validation
from arrowstate.upkeep.planned import DEFAULT_GRACE_MS
from arrowstate_formats.run_files import RunFormat

_EXPIRED = "show rows that have expired, too, and when each does"
_FLINK_SAVEPOINT = "the folder or URL with _metadata, or of the checkpoints of a job: then its newest"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are JSON where that is asked for."""

    as_json = False
    commands: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with exit code 2."""
        if not self.as_json:
            super().error(message)
        tell_error("UsageError", message, as_json=True)
        self.exit(2)


def make_parser(*, as_json: bool = False) -> Parser:
    """Return the parser of the command line; `as_json` for how it tells of wrong usage."""
    parser = Parser(
        prog="arrowstate",
        description="Look into a store of stream-processing state, query it, take savepoints, and look after it.",
        epilog="STORE is a folder or a URL of a store. Each command takes --json for machines.",
        formatter_class=_formatter,
    )
    parser.add_argument(
        "--version", action="store_true", help="show the versions of arrowstate, its format, and its packages"
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    _add_reading(commands)
    _add_savepoints(commands)
    _add_publish(commands)
    _add_tags(commands)
    _add_comparing(commands)
    _add_checks(commands)
    _add_care(commands)
    _add_run(commands)
    _add_ui(commands)
    verbs = _add_flink(commands)
    completed = _command(
        commands,
        "completion",
        "print the script by which a shell completes the command line",
        "completion.print_script",
        checkpoint=False,
        store=False,
    )
    completed.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")
    parser.commands = tuple(commands.choices)
    for each in (parser, *commands.choices.values(), *verbs.choices.values()):
        each.as_json = as_json
    return parser


def _add_reading(commands: Commands) -> None:
    listed = _command(
        commands,
        "list",
        "list the checkpoints of a store, or what lies below a folder",
        "listing.list_checkpoints",
        checkpoint=False,
    )
    listed.add_argument("--limit", type=_positive, metavar="N", help="only the newest N checkpoints")

    shown = _command(commands, "show", "show what a checkpoint holds", "listing.show_checkpoint")
    shown.add_argument("--state", metavar="OPERATOR.STATE", help="show one state: its columns and its runs")

    queried = _command(commands, "sql", "query a checkpoint with DuckDB, or all stores below a folder", "shell.run")
    _add_query(queried, "a table is called OPERATOR.STATE", "what a pipe brings, or a shell on a terminal")
    queried.add_argument("--expired", action="store_true", help=_EXPIRED)
    queried.add_argument(
        "--lease", action="store_true", help="keep the checkpoint from being collected meanwhile; writes to the store"
    )

    queried.add_argument(
        "--validate",
        choices=get_args(Validation),
        default="checksums",
        help="full: also check offsets and texts, for files that somebody may have forged (default: %(default)s)",
    )


def _add_query(queried: Parser, tables: str, otherwise: str = "what a pipe brings") -> None:
    queried.add_argument("query", metavar="QUERY", nargs="?", help=f"one SELECT; {tables}; by default {otherwise}")
    queried.add_argument("-f", "--file", metavar="FILE", help="read the query from a file, or several")
    queried.add_argument("--csv", action="store_true", help="print the result as CSV")
    queried.add_argument(
        "--format", choices=["table", *FORMATS], help="how the result is printed or written (default: table)"
    )
    queried.add_argument(
        "-o", "--output", metavar="FILE", help="write the result to a file; the format is that of its extension"
    )


def _add_savepoints(commands: Commands) -> None:
    saved = _command(
        commands, "savepoint", "write a checkpoint as a folder of its own, of plain Parquet files", "savepoint.write"
    )
    saved.add_argument("place", metavar="NAME_OR_PATH", help="a name, or with a / the path of a new folder")
    saved.add_argument(
        "--format",
        choices=get_args(RunFormat),
        default="parquet",
        help="the format of the run files (default: %(default)s)",
    )
    saved.add_argument("--delta", action="store_true", help="make each state a table of Delta Lake too")

    imported = _command(
        commands,
        "import",
        "bring a savepoint, or the newest checkpoint of another store, into a store",
        "savepoint.bring_in",
        checkpoint=False,
    )
    imported.add_argument(
        "place", metavar="NAME_OR_PATH", help="a name, or with a / the path or URL of a savepoint or a store"
    )
    imported.add_argument("--claim", action="store_true", help="delete the savepoint afterwards; by default it stays")

    disposed = _command(commands, "dispose", "delete a savepoint", "savepoint.delete", checkpoint=False, store=False)
    disposed.add_argument("place", metavar="PLACE", help="folder or URL of the savepoint")


def _add_publish(commands: Commands) -> None:
    published = _command(
        commands,
        "publish",
        "show the newest checkpoint as tables for every engine",
        "publish.publish",
        checkpoint=False,
    )
    published.add_argument("--to", metavar="PLACE", required=True, help="a folder or URL outside of the store")
    form = published.add_mutually_exclusive_group()
    form.add_argument(
        "--iceberg",
        type=int,
        choices=(3, 2),
        default=3,
        help="tables of Iceberg; 2 for engines that do not read deletion vectors (default: %(default)s)",
    )
    form.add_argument(
        "--delta",
        type=int,
        nargs="?",
        choices=(3, 2),
        const=3,
        help="tables of Delta Lake; 2 for engines that do not read deletion vectors (3 without a number)",
    )
    published.add_argument(
        "--state", metavar="OPERATOR.STATE", action="append", help="a table to publish, may be repeated; all by default"
    )
    published.add_argument(
        "--history",
        metavar="COUNT",
        type=int,
        default=10,
        help="how many checkpoints the tables list (default: %(default)s)",
    )
    published.add_argument("--watch", action="store_true", help="go on, and publish each later checkpoint")


def _add_tags(commands: Commands) -> None:
    tagged = _command(commands, "tag", "keep a checkpoint until its tag is removed", "tags.tag")
    tagged.add_argument("name", metavar="NAME", help="of the tag")
    untagged = _command(commands, "untag", "remove a tag", "tags.untag", checkpoint=False)
    untagged.add_argument("name", metavar="NAME", help="of the tag")
    _command(commands, "tags", "list the tags of a store", "tags.list_tags", checkpoint=False)

    returned = _command(
        commands, "rollback", "make an older checkpoint the newest again", "tags.roll_back", checkpoint=False
    )
    returned.add_argument("to", metavar="CHECKPOINT", help="an id, a tag or a time")
    returned.add_argument("--comment", metavar="TEXT", help="why; kept in the log")

    changed = _command(commands, "edit", "change a checkpoint with a script of SQL", "edit.edit")
    changed.add_argument(
        "script",
        metavar="SCRIPT",
        nargs="?",
        help="a file with UPDATE, DELETE, INSERT and MERGE statements over OPERATOR.STATE; - reads standard input",
    )
    mode = changed.add_mutually_exclusive_group()
    mode.add_argument("--plan", action="store_true", help="only print what would change; the default")
    mode.add_argument("--apply", action="store_true", help="commit it as the newest checkpoint; writers are fenced")
    mode.add_argument("--to", metavar="PLACE", help="write it as a savepoint instead: a name, a path or a URL")
    changed.add_argument(
        "--delete-key",
        nargs=2,
        action="append",
        metavar=("OPERATOR", "KEY"),
        help="first delete a key from all states of an operator",
    )
    changed.add_argument(
        "--set-property",
        nargs=2,
        action="append",
        metavar=("NAME", "JSON"),
        help="set a property of the checkpoint, such as a source offset",
    )
    changed.add_argument(
        "--purge",
        action="store_true",
        help="with --apply: remove deleted rows from the files too, and older checkpoints with them",
    )
    changed.add_argument(
        "--checked",
        action="append",
        default=[],
        metavar="TABLE",
        help="with --purge: an output table or dead letters that you have looked through",
    )
    changed.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="with --apply: plan again up to N times if somebody committed meanwhile; 0",
    )
    changed.add_argument("--samples", type=_positive, default=5, metavar="N", help="rows to show of each state; 5")
    changed.add_argument("--comment", metavar="TEXT", help="why; kept in the log")


def _add_comparing(commands: Commands) -> None:
    compared = _command(commands, "diff", "say what changed between two checkpoints", "diff.compare", checkpoint=False)
    compared.add_argument(
        "before", metavar="BEFORE", help="the earlier checkpoint: an id, a tag, a time, or -1 for the one before"
    )
    compared.add_argument("after", metavar="AFTER", nargs="?", help="the later one; the newest by default")
    compared.add_argument("--state", metavar="OPERATOR.STATE", help="of this state alone")
    compared.add_argument("--rows", action="store_true", help="show the rows that changed; needs --state")

    exported = _command(commands, "export", "write a state to a file, or some of it", "export.export")
    exported.add_argument("state", metavar="OPERATOR.STATE", help="the state")
    exported.add_argument("-o", "--output", metavar="FILE", required=True, help="the file, which is replaced")
    exported.add_argument("--format", choices=FORMATS, help="by default that of the file's extension")
    exported.add_argument("--columns", metavar="COLUMN", nargs="+", help="these columns alone, in this order")
    exported.add_argument("--where", metavar="CONDITION", help="only rows for which this is true, in SQL")
    exported.add_argument("--expired", action="store_true", help=_EXPIRED)

    for name, help, printed in (
        ("lookup", "show the value of a key", "keys.look_up"),
        ("history", "show the value of a key in each checkpoint that changed it", "keys.history"),
    ):
        asked = _command(commands, name, help, printed)
        asked.add_argument("state", metavar="OPERATOR.STATE", help="the state")
        asked.add_argument(
            "keys",
            metavar="KEY",
            nargs="+",
            help="as text, bytes as hexadecimal digits, or JSON for a key of several columns, a struct or a list",
        )
        if name == "lookup":
            asked.add_argument("--expired", action="store_true", help=_EXPIRED)


def _add_checks(commands: Commands) -> None:
    _command(
        commands,
        "status",
        "say whether the job of a store is up, since when and why; the exit code tells probes",
        "status.print_status",
        checkpoint=False,
    )
    checked = _command(
        commands, "restore-check", "restore a checkpoint as a trial and verify every checksum", "check.restore_check"
    )
    checked.add_argument(
        "--parallelism", type=_positive, metavar="P", help="subtasks to restore; as in the checkpoint by default"
    )
    checked.add_argument(
        "--max-parallelism", type=_positive, metavar="M", help="key groups; as in the checkpoint by default"
    )
    looked = _command(commands, "verify", "check whether a store is damaged", "verify.verify", checkpoint=False)
    looked.add_argument(
        "--deep", action="store_true", help="read every byte; by default only documents and the sizes of files"
    )

    _command(
        commands, "diagnose", "say what is damaged and what to do; change nothing", "verify.diagnose", checkpoint=False
    )


def _add_care(commands: Commands) -> None:
    collected = _command(
        commands,
        "gc",
        "plan or apply a collection of old checkpoints and files that nothing needs",
        "gc.collect",
        checkpoint=False,
    )
    mode = collected.add_mutually_exclusive_group()
    mode.add_argument("--plan", action="store_true", help="print what would be deleted; the default")
    mode.add_argument("--apply", action="store_true", help="delete it")
    collected.add_argument(
        "--count", type=_positive, default=1, metavar="N", help="checkpoints to keep (default: %(default)s)"
    )
    collected.add_argument(
        "--age", type=_duration, metavar="TIME", help="keep younger checkpoints too; such as 90m, 12h or 7d"
    )
    collected.add_argument(
        "--hours",
        type=int,
        default=0,
        metavar="N",
        help="keep the newest checkpoint of each of the last N hours too (default: %(default)s)",
    )
    collected.add_argument(
        "--grace",
        type=_duration,
        default=DEFAULT_GRACE_MS,
        metavar="TIME",
        help="how long a file that no checkpoint refers to is kept, at least 1m (default: 24h)",
    )
    collected.add_argument(
        "--allow-short-grace",
        action="store_true",
        help="allow a grace period below 1m; only if nobody writes to the store",
    )
    compacted = _command(
        commands,
        "compact",
        "plan or apply a compaction of the newest checkpoint into fewer and fuller files",
        "compact.compact",
        checkpoint=False,
    )
    mode = compacted.add_mutually_exclusive_group()
    mode.add_argument("--plan", action="store_true", help="print what would be merged; the default")
    mode.add_argument("--apply", action="store_true", help="merge it and commit the result")
    compacted.add_argument(
        "--max-amplification",
        type=float,
        default=CompactionPolicy().max_space_amplification,
        metavar="X",
        help="bytes that a state may take, over those of its live rows (default: %(default)s)",
    )
    compacted.add_argument(
        "--max-small-files",
        type=_positive,
        default=CompactionPolicy().max_small_files,
        metavar="N",
        help="files below 1 MiB that a state may have per subtask (default: %(default)s)",
    )
    warmed = _command(
        commands,
        "warm",
        "compile all kernels now, as for an image or a node, so that no first call has to",
        "warm.warm",
        checkpoint=False,
        store=False,
    )
    warmed.add_argument(
        "--processes", type=_positive, metavar="N", help="processes that compile (default: one for each core)"
    )


def _add_run(commands: Commands) -> None:
    started = _command(
        commands,
        "run",
        "run a job of the runtime from a Python file, until its end or until Ctrl-C stops it",
        "run.run_job",
        checkpoint=False,
        store=False,
        json="print a JSON object in a line for each event",
    )
    started.add_argument("file", metavar="FILE", help="a Python file with a Job, or a function that returns one")
    started.add_argument("--job", metavar="NAME", help="the variable or function; needed where there are several")
    started.add_argument("--parallelism", type=_positive, metavar="P", help="slots; as in the file by default")
    started.add_argument("--max-parallelism", type=_positive, metavar="M", help="key groups; as in the file by default")
    started.add_argument(
        "--mode",
        choices=["processes", "threads"],
        default="processes",
        help="where slots run (default: %(default)s)",
    )
    started.add_argument(
        "--from",
        dest="begin_from",
        metavar="PLACE",
        help="begin with a savepoint or another store, by name, path or URL, @ and a checkpoint, unless the job's "
        "store has begun there; or with a checkpoint of that store, by its number; by default with its newest",
    )
    started.add_argument(
        "--standby",
        action="store_true",
        help="begin only when no other process runs the job: wait while one does, and take over when it is gone",
    )
    at_end = started.add_mutually_exclusive_group()
    at_end.add_argument(
        "--savepoint", metavar="NAME_OR_PATH", help="where Ctrl-C writes the savepoint; stopped-at-N by default"
    )
    at_end.add_argument(
        "--no-savepoint",
        dest="stop_with_savepoint",
        action="store_false",
        help="stop with a checkpoint and no savepoint",
    )
    started.add_argument(
        "--every",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="how often figures are printed where there is no terminal (default: %(default)g)",
    )


def _add_ui(commands: Commands) -> None:
    shown = _command(
        commands,
        "ui",
        "show stores in a browser, until Ctrl-C; nothing is written to them",
        "ui.show",
        checkpoint=False,
        store=False,
        json="print the address as JSON",
    )
    shown.add_argument("stores", metavar="STORE", nargs="+", help="folder or URL of a store")
    shown.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: %(default)s, only for this machine)"
    )
    shown.add_argument("--port", type=int, default=0, metavar="N", help="a free one by default")
    shown.add_argument(
        "--tables",
        metavar="PLACE",
        action="append",
        default=[],
        help="a place that was published to, which engines read at /v1 by the REST catalog of Iceberg",
    )
    shown.add_argument("--no-browser", action="store_true", help="print the address and open no browser")


def _add_flink(commands: Commands) -> Commands:
    flink = commands.add_parser(
        "flink",
        help="look into a savepoint of Flink, and import it",
        description="Read savepoints and checkpoints of Flink without a JVM. Each verb takes --json for machines.",
        formatter_class=_formatter,
    )
    verbs = flink.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    shown = _command(verbs, "show", "say what it holds", "flink.show", checkpoint=False, store=False)
    shown.add_argument("savepoint", metavar="SAVEPOINT", help=_FLINK_SAVEPOINT)
    shown.add_argument(
        "--rows",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="count the rows of each state, which reads all of them (default: yes)",
    )

    queried = _command(verbs, "sql", "query it with DuckDB", "flink.sql", checkpoint=False, store=False)
    queried.add_argument("savepoint", metavar="SAVEPOINT", help=_FLINK_SAVEPOINT)
    _add_query(queried, "a table is called OPERATOR.STATE, with columns key, value and others")

    taken = _command(verbs, "import", "import it into a store", "flink.import_", checkpoint=False, store=False)
    taken.add_argument("savepoint", metavar="SAVEPOINT", help=_FLINK_SAVEPOINT)
    taken.add_argument("store", metavar="STORE", help="folder or URL of the store; made if there is none")
    taken.add_argument(
        "--operator",
        action="append",
        metavar="NAME=UID",
        help="import this operator of Flink under this uid, and no other than those named; may be repeated",
    )
    taken.add_argument("--parallelism", type=_positive, metavar="P", help="subtasks; as in the savepoint by default")
    taken.add_argument(
        "--max-parallelism", type=_positive, metavar="M", help="key groups; as in the savepoint by default"
    )
    taken.add_argument(
        "--states",
        "--state",
        action="append",
        metavar="OPERATOR.STATE[=NAME[:REDUCER]]",
        help="import this state, under this name, as reducing state with this reducer, and no other than those named; "
        "may be repeated",
    )
    for each in (shown, queried, taken):
        each.add_argument(
            "--hints",
            "--hint",
            action="append",
            metavar="NAME=TYPE",
            help="the SQL type of the values of OPERATOR.STATE, or a STRUCT of the fields of a class, which a "
            "savepoint does not say; may be repeated",
        )
    return verbs


def _command(
    commands: Commands,
    name: str,
    help: str,
    run: str,
    *,
    checkpoint: bool = True,
    store: bool = True,
    json: str = "print the result as JSON",
) -> Parser:
    parser = commands.add_parser(
        name, help=help, description=help[0].upper() + help[1:] + ".", formatter_class=_formatter
    )
    parser.set_defaults(run=run)  # The module of this package, and its function: only one of them is imported.
    if store:
        parser.add_argument("store", metavar="STORE", help="folder or URL of the store")
    if checkpoint:
        parser.add_argument(
            "--checkpoint", metavar="N", help="the checkpoint: an id, a tag or a time; the newest by default"
        )
    parser.add_argument("--json", action="store_true", help=json)
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    # Of one width everywhere, not that of the terminal: a test compares the help with what it was.
    return argparse.HelpFormatter(prog, max_help_position=32, width=100)


def _positive(text: str) -> int:
    number = int(text) if re.fullmatch(r"-?[0-9]+", text) else None
    if number is None:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}")
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got {text}") from None
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return seconds


def _duration(text: str) -> int:
    """Return the milliseconds of a text such as `90s`, `15m`, `12h` or `7d`."""
    match = re.fullmatch(r"([0-9]+)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a number with s, m, h or d, such as 12h, got {text}")
    return int(match[1]) * _UNITS_MS[match[2]]
