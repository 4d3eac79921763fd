"""Every public object shows itself in a line, and functions say what they return."""

import inspect
import re
from pathlib import Path

import pyarrow as pa

import arrowstate

NAMES = Path(__file__).with_name("public_names.txt").read_text().split()
PROTOCOLS = {"Aggregate"}
"""What only users have instances of."""


def test_every_public_class_has_a_repr_of_its_own():
    classes = {name: getattr(arrowstate, name) for name in NAMES if name not in PROTOCOLS}
    without = [name for name, kind in classes.items() if inspect.isclass(kind) and kind.__repr__ is object.__repr__]

    assert without == []


class Count(arrowstate.KeyedProcessFunction):
    def process_element(self, value, context, out):
        shown.extend([repr(context), repr(out)])


class Copy(arrowstate.BatchFunction):
    def process_batch(self, batch, context):
        shown.append(repr(context))


shown: list[str] = []


def test_what_stores_and_runners_show_is_short_and_says_which_it_is():
    shown.clear()
    store = arrowstate.open_store("memory://reprs", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    writer = store.writer()
    writer.checkpoint({"op": [backend]})

    with writer.coordinator({"op": [backend]}) as coordinator, store.lease() as lease:
        shown.extend([repr(writer), repr(coordinator), re.sub("[0-9]{5,}", "...", repr(lease))])
    on = "<KeyedStateBackend key groups 0 to 7, states: none>"
    keyed = arrowstate.KeyedProcessRunner(backend, Count())
    batches = arrowstate.BatchRunner(backend, Copy())
    keyed.process(pa.record_batch({"k": [1]}))
    batches.process(pa.record_batch({"k": [1]}))
    shown.extend([repr(keyed), repr(batches)])

    assert shown == [
        "<StoreWriter memory://reprs: epoch 1>",
        "<CheckpointCoordinator: checkpoints in flight: none>",
        "<Lease on checkpoint 1 of memory://reprs until ...>",
        f"<ProcessContext of {on}>",
        "<Collector of 0 elements>",
        f"<BatchContext of {on}>",
        "<KeyedProcessRunner of Count>",
        "<BatchRunner of Copy>",
    ]


def test_a_function_with_a_section_of_what_it_returns_names_the_type_of_its_annotation():
    wrong = []
    for name in ("StateStore", "StoreWriter", "Snapshot", "CheckpointCoordinator", "Collection", "Compaction", "Lease"):
        for verb, function in inspect.getmembers(getattr(arrowstate, name), inspect.isfunction):
            said = re.search(r"Returns\n-+\n(.*)", inspect.getdoc(function) or "")
            known = inspect.signature(function).return_annotation
            if said is not None and said[1].split(".")[-1] != str(known).split(".")[-1]:
                wrong.append((name, verb, said[1], known))

    assert wrong == []
    assert "The checkpoint that was committed" in inspect.getdoc(arrowstate.StoreWriter.checkpoint)
