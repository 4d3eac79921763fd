"""Examples of pages, run as a reader runs them: from the top of a page to its end, in one folder and one namespace.

A block of `python` runs; one that shows a dialogue (`>>>`) must give what it shows, and after another a block of `text`
says what it prints. In a block of `console`, a command of arrowstate must print the lines that follow it; one without
such lines is not run. `...` stands for any text, and white space counts as one space. The working folder of a page is
`/data`; times and random names are those of the day the page was written.
"""

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import arrowstate.cli
from kafka_brokers import tansu_broker, tansu_program
from postgres import postgres_programs, postgres_server

ROOT = Path(__file__).parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

_BLOCK = re.compile(r"^```(python|console|text)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    language: str
    text: str
    line: int
    "Of its first line, from 1."
    follows: bool
    "Whether nothing but white space is between it and the block before."


def blocks(text: str) -> Iterator[Block]:
    """Return the blocks of a page that run, or say what others print."""
    end = -1
    for found in _BLOCK.finditer(text):
        between = text[end : found.start()] if end >= 0 else "begin"
        yield Block(found[1], found[2], text.count("\n", 0, found.start(2)) + 1, not between.strip())
        end = found.end()


def pages() -> list[str]:
    """Return the pages with examples that need no Spark, relative to the root."""
    return [page for page in _all_pages() if not needs_spark(page)]


def needs_spark(page: str) -> bool:
    """Say whether the examples of a page need a session of Spark."""
    return page.startswith("docs/spark/")


@contextlib.contextmanager
def servers_of(page: str) -> Iterator[dict[str, str]]:
    """Run what the examples of a page connect to; gives the variables by which they find it."""
    if page == "docs/guides/kafka.md":
        if tansu_program() is None:
            pytest.skip("Tansu is not installed")
        with tansu_broker() as servers:
            yield {"KAFKA_SERVERS": servers}
    elif page.endswith("/postgres.md"):
        if postgres_programs() is None:
            pytest.skip("PostgreSQL is not installed")
        with postgres_server() as conninfo:
            parts = dict(part.split("=") for part in conninfo.split())
            yield {"PGHOST": parts["host"], "PGUSER": parts["user"], "PGDATABASE": parts["dbname"]}
    else:
        yield {}


def spark_pages() -> list[str]:
    """Return the pages with examples on Spark, relative to the root."""
    return [page for page in _all_pages() if needs_spark(page)]


def _all_pages() -> list[str]:
    found = sorted((ROOT / "docs").rglob("*.md"))
    names = [path.relative_to(ROOT).as_posix() for path in found]
    return [name for name in names if any(runs(block) for block in blocks((ROOT / name).read_text()))]


def runs(block: Block) -> bool:
    """Say whether a block is run, or one of its commands."""
    return block.language == "python" or (block.language == "console" and bool(commands(block)))


def run_page(page: str, names: dict[str, Any] | None = None) -> int:
    """Run the examples of a page in the working folder and return how many there were; it may use `names`.

    Raises
    ------
    AssertionError
        If one gives something else than it shows; the message has the page, the line and both.
    """
    return run_blocks(page, list(blocks((ROOT / page).read_text())), {} if names is None else names)


def run_blocks(page: str, found: Sequence[Block], names: dict[str, Any]) -> int:
    """Run blocks one after the other; see `run_page`."""
    names["__name__"] = "page"
    try:
        return _run_each(page, found, names)
    finally:
        # A page that fails in its middle leaves no program behind.
        for started in names.values():
            if isinstance(started, subprocess.Popen) and started.poll() is None:
                started.kill()


def _run_each(page: str, found: Sequence[Block], names: dict[str, Any]) -> int:
    ran = 0
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language == "console":
            ran += run_commands(page, block)
        elif block.language == "python":
            shown = after.text if after is not None and after.language == "text" and after.follows else None
            run_python(page, block, names, shown)
            ran += 1
    return ran


def run_python(page: str, block: Block, names: dict[str, Any], shown: str | None) -> None:
    """Run a block of Python; one with a main part is a script of its own."""
    if 'if __name__ == "__main__":' in block.text:
        script = Path("script.py")
        script.write_text(here(block.text))
        ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        assert ran.returncode == 0, f"{page}:{block.line}: {ran.stderr}"
        check(page, block.line, shown or "", ran.stdout)
        return
    if block.text.startswith(">>> "):
        example = doctest.DocTestParser().get_doctest(block.text, names, page, page, block.line - 1)
        example.globs = names
        report = io.StringIO()
        results = doctest.DocTestRunner(optionflags=FLAGS | doctest.FAIL_FAST).run(
            example, out=report.write, clear_globs=False
        )
        assert results.failed == 0, report.getvalue()
        return
    printed = io.StringIO()
    # The lines of a traceback are those of the page.
    code = compile("\n" * (block.line - 1) + here(block.text), page, "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    if shown is not None:
        check(page, block.line, shown, printed.getvalue())


def commands(block: Block) -> list[tuple[str, str]]:
    """Return the commands of arrowstate that show what they print, and that."""
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)
    return [(command, shown) for command, shown in found if command.startswith("arrowstate ") and shown.strip()]


def run_commands(page: str, block: Block) -> int:
    """Run the commands of a block that show what they print, and return how many those were."""
    for command, shown in commands(block):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            arrowstate.cli.main(shlex.split(here(command), comments=True)[1:])
        check(page, block.line, shown, printed.getvalue(), command)
    return len(commands(block))


def here(text: str) -> str:
    """Put the working folder where a page says `/data`."""
    return re.sub(r"(?<![\w./])/data(?=/)", str(Path.cwd()), text)


def check(page: str, line: int, shown: str, printed: str, command: str = "the block") -> None:
    """Compare what a page shows with what was printed."""
    printed = printed.replace(str(Path.cwd()), "/data")
    same = doctest.OutputChecker().check_output(timeless(shown), timeless(printed), FLAGS)
    assert same, f"{page}:{line}: {command} prints\n\n{printed}\nand the page shows\n\n{shown}"


def timeless(text: str) -> str:
    """Leave out what is another one each time: times and random names."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME", text)
    return re.sub(r"\b[0-9a-f]{32}\b", "ID", text).strip() + "\n"
