"""The command line without its extras: plain where it can be, and saying what to install where it cannot."""

import argparse
import subprocess
import sys

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import completion, shell
from stores import commit

EXTRAS = ("polars", "prompt_toolkit", "rich", "shtab")
ALONE = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); from arrowstate.cli import main; sys.exit(main())"


@pytest.fixture
def store(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("city", pa.string())]), max_parallelism=16)
    backend.state(arrowstate.ValueStateDescriptor("mayor", pa.string())).update_batch(["東京"], ["小池"])
    commit(store, {"towns": [backend]})
    return store


@pytest.mark.parametrize(
    "command",
    [["list"], ["show"], ["sql", "select city, mayor from towns.mayor"], ["verify"], ["lookup", "towns.mayor", "東京"]],
)
def test_tables_are_as_with_it(store, command):
    name, *rest = command
    arguments = [name, store.url, *rest]
    environment = {"PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}

    plain = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, env=environment, check=True)

    whole = subprocess.run(
        [sys.executable, "-m", "arrowstate", *arguments], capture_output=True, env=environment, check=True
    )
    assert plain.stdout == whole.stdout
    assert plain.stderr == b""


def test_what_needs_a_package_says_which_extra_brings_it(store, monkeypatch):
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)
    needs = {
        r"shtab: pip install 'arrowstate\[cli\]'": lambda: completion.print_script(argparse.Namespace(shell="bash")),
        r"prompt_toolkit: pip install 'arrowstate\[cli\]'": lambda: shell._session(None),
        r"^to_polars\(\) needs .* polars: pip install 'arrowstate\[polars\]'": lambda: store.latest().to_polars(
            "towns.mayor"
        ),
        r"^lazy\(\) needs .* polars: pip install 'arrowstate\[polars\]'": lambda: store.latest()["towns.mayor"].lazy(),
    }

    for text, call in needs.items():
        with pytest.raises(arrowstate.MissingDependencyError, match=text):
            call()
