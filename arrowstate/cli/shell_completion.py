"""What Tab offers in the shell of `arrowstate sql`: tables, functions, columns, words of SQL, and commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from arrowstate.cli.formats import FORMATS
from arrowstate.cli.shell_names import Names, keywords

_PIECES = re.compile(r"""'(?:[^']|'')*'?|(?:"(?:[^"]|"")*"?|[\w.])+|.""", re.DOTALL)
"""Texts, names with what stands between their dots, and whatever else."""
_TABLE_FOLLOWS = ("from", "join", "describe")


class ShellCompleter(Completer):
    """Completes what stands before the cursor."""

    def __init__(self, names: Callable[[], Names], commands: Sequence[str]) -> None:
        self._names = names
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what may stand there."""
        del complete_event
        before = document.text_before_cursor
        if before.lstrip().startswith("."):
            word = before.lstrip() if " " not in before.lstrip() else before[before.rindex(" ") + 1 :]
            offered: Iterable[tuple[str, str]] = self._of_command(before.lstrip())
        else:
            pieces = _PIECES.findall(before)
            if pieces and pieces[-1].startswith("'"):
                return
            word = pieces.pop() if pieces and re.match(r'["\w.]', pieces[-1]) else ""
            previous = next((piece for piece in reversed(pieces) if piece.strip()), "")
            offered = self._of_query(previous.lower(), document.text, word)
        for text, what in offered:
            if text.lower().startswith(word.lower()) and text != word:
                yield Completion(text, start_position=-len(word), display_meta=what)

    def _of_command(self, line: str) -> Iterable[tuple[str, str]]:
        name, space, _ = line.partition(" ")
        if not space:
            return [(command, "command") for command in self._commands]
        names = self._names()
        if name == ".schema":
            return [(table, "table") for table in [*names.states, *names.of_store]]
        if name == ".checkpoint":
            return [(tag, "tag") for tag in names.tags]
        words = {".output": ("table", *FORMATS), ".timing": ("on", "off")}.get(name, ())
        return [(word, "") for word in words]

    def _of_query(self, previous: str, text: str, word: str) -> Iterator[tuple[str, str]]:
        names = self._names()
        yield from ((table, "state") for table in names.states)
        yield from ((table, "table") for table in names.of_store)
        yield from ((function, "function") for function in names.functions)
        if previous in _TABLE_FOLLOWS:
            return
        # Behind the dot of an alias stands a column too.
        alias, dot, _ = word.rpartition(".")
        yield from ((f"{alias}{dot}{column}", "column") for column in names.column_names(text))
        if word:
            yield from ((_like(word, name), "SQL") for name in keywords())


def _like(word: str, keyword: str) -> str:
    return keyword.upper() if word.isupper() else keyword
