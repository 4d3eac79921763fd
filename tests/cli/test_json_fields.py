"""The fields that each command prints with `--json`, which are added to and not renamed: see docs/versions.md."""

import json
import uuid
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

import arrowstate
import flink_truth
from arrowstate.cli import main, warm
from arrowstate.cli.app import make_parser
from arrowstate.ui import serving
from arrowstate_formats import kernel_cache

PINNED = Path(__file__).with_name("json_fields.txt")
COMMANDS = {
    "list": ["STORE"],
    "show": ["STORE"],
    "show --state": ["STORE", "--state", "counter.clicks"],
    "sql": ["STORE", "select user, clicks as total from counter.clicks"],
    "savepoint": ["STORE", "PLACE"],
    "import": ["OTHER", "STORE"],
    "dispose": ["SAVED"],
    "publish": ["STORE", "--to", "TABLES", "--state", "counter.clicks"],
    "tag": ["STORE", "gold", "--checkpoint", "1"],
    "tags": ["STORE"],
    "untag": ["STORE", "gold"],
    "rollback": ["STORE", "2"],
    "edit": ["STORE", "SCRIPT", "--set-property", "note", "7"],
    "edit --apply": ["OTHER", "SCRIPT", "--apply"],
    "edit --to": ["STORE", "SCRIPT", "--to", "EDITED"],
    "edit --purge": ["OTHER", "--delete-key", "counter", "u9", "--apply", "--purge"],
    "diff": ["STORE", "-1"],
    "diff --rows": ["STORE", "1", "2", "--state", "counter.clicks", "--rows"],
    "export": ["STORE", "counter.clicks", "-o", "EXPORTED"],
    "lookup": ["STORE", "counter.clicks", "u1"],
    "history": ["STORE", "counter.clicks", "u1", "u2"],
    "restore-check": ["STORE"],
    "verify": ["STORE"],
    "diagnose": ["STORE"],
    "gc": ["STORE"],
    "gc --apply": ["STORE", "--apply"],
    "compact": ["STORE", "--max-amplification", "1.1"],
    "compact --apply": ["STORE", "--max-amplification", "1.1", "--apply"],
    "flink show": ["show", "FLINK"],
    "flink sql": ["sql", "FLINK", "select key as user, value as total from v2.v2_reduce"],
    "flink import": ["import", "FLINK", "IMPORTED"],
    "completion": ["fish"],
    "warm": ["--processes", "1"],
    "run": ["FILE", "--mode", "threads"],
    "status": ["memory://json-fields"],
    "ui": ["STORE"],
}
"""What is run for each entry of the file; a command may have several."""
FLINK = Path(__file__).parents[1] / "foreign/flink/fixtures/v2-forst-checkpoint.tar.xz"
NAMES_OF_THE_JOB = {"key", "properties", "dead_letters"}
"""Fields whose own fields are named by the job."""
JOB = """
import pyarrow as pa
from arrowstate.runtime import Job, OutputTable, TableSource

job = Job("memory://json-fields")
job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers").sink(OutputTable("copy"))
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A store that has something to say in every field: rows that died, files to delete and to wait for."""
    folder = tmp_path_factory.mktemp("json")
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    day = arrowstate.TimeToLive(86_400_000)
    backend.state(arrowstate.ValueStateDescriptor("city", pa.string(), ttl=day)).update_batch(["u1"], ["Oslo"])
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add(17)
    store = arrowstate.open_store(folder / "store", create=True)
    with store.writer() as writer:
        for rows in (10_000, 8_000):
            clicks.add_batch([f"u{number}" for number in range(rows)], [1] * rows)
            writer.checkpoint({"counter": [backend]}, operator_states={"source": [source]}, properties={"offset": rows})
    store.savepoint(str(folder / "saved"))
    arrowstate.open_store(folder / "other", create=True)
    for path in list((folder / "store/data").rglob("*.arrow"))[:1]:
        path.with_name(f"{uuid.uuid4().hex}.arrow").write_bytes(b"of a writer that was killed")
    (folder / "file").with_suffix(".py").write_text(JOB)
    flink_truth.unpack(FLINK, folder)
    (folder / "script.sql").write_text("update counter.clicks set clicks = clicks + 1 where \"user\" = 'u7'")
    return {
        name: str(folder / name.lower())
        for name in ("STORE", "OTHER", "SAVED", "PLACE", "EDITED", "IMPORTED", "TABLES")
    } | {
        "FILE": str(folder / "file.py"),
        "FLINK": str(folder / "v2-forst-checkpoint" / "savepoint"),
        "SCRIPT": str(folder / "script.sql"),
        "EXPORTED": str(folder / "clicks.csv"),
    }


@contextmanager
def few_kernels(folder):
    """Two kernels to compile and not a hundred; what other commands need is where it was compiled to before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "KERNELS", warm.KERNELS[:2])
        patch.setenv(kernel_cache.CACHE_DIR_VARIABLE, str(folder))
        kernel_cache.forget_folders()
        yield
    kernel_cache.forget_folders()


def fields_of(value, at=""):
    """Yield the path of each field, `[]` for the elements of a list."""
    if isinstance(value, list):
        for element in value:
            yield from fields_of(element, f"{at}[]")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield f"{at}.{name}".removeprefix(".")
            if name not in NAMES_OF_THE_JOB:
                yield from fields_of(inner, f"{at}.{name}".removeprefix("."))


def test_every_command_takes_json_and_is_pinned_here():
    (commands,) = (action for action in make_parser()._actions if action.dest == "command")

    assert {name.split()[0] for name in COMMANDS} == set(commands.choices)
    assert [name for name, parser in commands.choices.items() if "--json" not in parser.format_help()] == []


def test_the_fields_of_every_command_are_those_that_are_pinned(places, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(serving.Page, "run", serving.Page.close)
    lines = []
    for name, arguments in COMMANDS.items():
        with few_kernels(tmp_path) if name == "warm" else nullcontext():
            # A tag of the edit before holds what is purged, and the purge is not done.
            code = 1 if name == "edit --purge" else 0
            assert main([name.split()[0], *(places.get(each, each) for each in arguments), "--json"]) == code, name
        printed = capsys.readouterr().out
        found = [json.loads(line) for line in printed.splitlines()] if name == "run" else json.loads(printed)
        lines += [f"{name}: {field}" for field in dict.fromkeys(fields_of(found))]

    # A field is added at will: write "\n".join(lines) and a newline to the file. One that goes or gets another name is
    # a change for users, and stands in the changelog.
    assert lines == PINNED.read_text().splitlines()
