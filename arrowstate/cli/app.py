"""What `arrowstate` takes, and which command runs.

Exit codes: 0 done; 1 an error of arrowstate, with its message on stderr, or a check that found a problem; 2 wrong
usage; 128 and the number of a signal that ended it. Results go to stdout, messages and progress bars to stderr, and a
bar is shown on a terminal only.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

from arrowstate.cli.parser import make_parser
from arrowstate.errors import ArrowStateError, StoreNotFoundError

__all__ = ["main", "make_parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        # What was imported stays to the end of the process: nobody looks through it for garbage again and again.
        gc.freeze()
    try:
        parser = make_parser()
        options = parser.parse_args(given)
        if options.version:
            import arrowstate

            print(f"arrowstate {arrowstate.__version__}, format {arrowstate.FORMAT_VERSION}")
            return 0
        if options.command is None:
            parser.error(
                "a command is missing: list, show, sql, savepoint, import, dispose, tag, untag, tags, rollback, diff, "
                "lookup, history, restore-check, verify, diagnose, gc, compact, warm or run"
            )
        module, function = options.run.split(".")
        code: int = getattr(importlib.import_module(f"arrowstate.cli.{module}"), function)(options)
        return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except StoreNotFoundError as error:
        print(f"arrowstate: no store at {error.url}; check the path", file=sys.stderr)
        return 1
    except ArrowStateError as error:
        print(f"arrowstate: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the output has had enough; what is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
