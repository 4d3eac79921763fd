"""What `arrowstate` takes, and which command runs.

Exit codes: 0 done; 1 an error of arrowstate, with its message on stderr, or a check that found a problem; 2 wrong
usage; of `status` also 3 for a job that is not well or starts, 4 for one that is not up, 5 where there is none; 128 and
the number of a signal that ended it. Results go to stdout, messages and progress bars to stderr, and a bar is shown on
a terminal only. With --json errors are JSON too.
"""

from __future__ import annotations

import errno
import gc
import importlib
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from arrowstate.cli.messages import tell_error, tell_warning
from arrowstate.cli.output import drop_output
from arrowstate.cli.parser import make_parser
from arrowstate.errors import ArrowStateError

__all__ = ["main", "make_parser"]

_NO_UTF8 = re.compile("[\ud800-\udfff]")
"""What Python has in the place of bytes that are no UTF-8."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        code = _code_of(given, as_json, is_process=arguments is None)
        if sys.stdout is not None:
            # A short output is written here or at exit, where Python would complain of a pipe that is closed.
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has had enough.
        drop_output(sys.stdout)
        return 0
    except OSError as error:
        # That of a store is an error of arrowstate, and that of a file names it.
        if error.filename is not None or error.errno not in _FULL:
            raise
        drop_output(sys.stdout)
        tell_error("OutputError", f"the output cannot be written: {error.strerror}", as_json=as_json)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _code_of(given: Sequence[str], as_json: bool, *, is_process: bool) -> int:
    """Run the command line, tell an error of it, and return its exit code."""
    try:
        if not is_process:
            return _run(given, as_json)
        with warnings.catch_warnings(), _imports_kept():
            warnings.showwarning = partial(_show_warning, as_json)
            return _run(given, as_json)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except ArrowStateError as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        tell_error(type(error).__name__, text, as_json=as_json)
        return 1


@contextmanager
def _imports_kept() -> Iterator[None]:
    """Look for garbage in a block without looking through all that was imported again and again."""
    gc.freeze()
    try:
        yield
    finally:
        # What is let go at exit is found then.
        gc.unfreeze()


def _run(given: Sequence[str], as_json: bool) -> int:
    parser = make_parser(as_json=as_json)
    for argument in given:
        if _NO_UTF8.search(argument):
            parser.error(f"arguments must be UTF-8 text, got {argument!r}")
    options = parser.parse_args(given)
    if options.version:
        from arrowstate.cli.versions import print_versions

        print_versions()
        return 0
    if options.command is None:
        *others, last = parser.commands
        parser.error(f"a command is missing: {', '.join(others)} or {last}")
    module, function = options.run.split(".")
    loaded = importlib.import_module(f"arrowstate.cli.{module}")  # A command is loaded when it is called.
    code: int = getattr(loaded, function)(options)
    return code


def _show_warning(as_json: bool, message: Warning | str, category: type[Warning], *_: object) -> None:
    tell_warning(category.__name__, str(message), as_json=as_json)
