"""The command line `arrowstate`."""

from arrowstate.cli.app import main

__all__ = ["main"]
