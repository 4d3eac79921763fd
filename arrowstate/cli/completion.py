"""`arrowstate completion`: the script by which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from typing import Any

from arrowstate.cli.argparse_internals import arguments_of
from arrowstate.cli.output import print_json
from arrowstate.cli.parser import Parser, make_parser
from arrowstate.errors import MissingDependencyError

_FOLDERS = ("STORE", "SAVEPOINT", "PLACE", "NAME_OR_PATH")
_FILES = ("FILE", "SCRIPT")
"""What stands for a place in the help."""


def print_script(options: argparse.Namespace) -> int:
    """Print the script of a shell."""
    try:
        import shtab
    except ImportError as error:
        raise MissingDependencyError("the completion of a shell", "shtab", "cli") from error
    parser = make_parser()
    _name_places(parser, shtab)
    script = shtab.complete(parser, shell=options.shell)
    if options.json:
        print_json({"shell": options.shell, "script": script})
    else:
        print(script)
    return 0


def _name_places(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Say of each argument that is a file or a folder that it is one."""
    for action in arguments_of(parser):
        if isinstance(action.choices, dict):
            for each in action.choices.values():
                if isinstance(each, Parser):
                    _name_places(each, shtab)
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
