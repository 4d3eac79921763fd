"""What argparse does not promise to keep: the type of its commands, and the arguments of a parser."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[Any]
else:
    Commands = Any
"""What `add_subparsers` returns."""


def arguments_of(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    """Return the arguments of a parser, its commands among them."""
    return parser._actions
