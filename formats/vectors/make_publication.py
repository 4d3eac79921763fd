"""Write publication/: a store and its published table, as this version makes them, and the rows of each checkpoint.

The paths in a table are absolute; those here begin with `file:///example`, which a test replaces. Run it again only
when the form of a publication changes: what is stored is what later versions must read and go on from.
"""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa

import arrowstate
from arrowstate.publish import content, held, publication
from arrowstate.store import StateStore

FOLDER = Path(__file__).with_name("publication")
PLACE = Path("/example")


def main() -> int:
    """Make the folder anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    opened = arrowstate.open_store(FOLDER / "store", create=True)
    numbers = iter(range(1, 1000))
    store = StateStore(
        opened.storage, opened.store_id, clock_ms=lambda: 1767225600000, new_id=lambda: f"{next(numbers):032x}"
    )
    place_of = content.place_of
    real = f"file://{FOLDER}"
    # What is written says /example, whatever folder it is made in.
    moved = lambda storage, path="": place_of(storage, path).replace(real, f"file://{PLACE}")  # noqa: E731
    for module in (content, held, publication, sys.modules["arrowstate.publish.table"]):
        module.place_of = moved  # type: ignore[attr-defined]
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    old = pa.struct([("amount", pa.int32()), ("at", pa.timestamp("ms"))])
    new = pa.struct([("total", pa.int64()), ("at", pa.timestamp("ms")), ("currency", pa.string())])
    change = arrowstate.SchemaEvolution(renamed={"amount": "total"}, defaults={"currency": "EUR"})
    users = [f"user {number}" for number in range(3000)]
    rows = {}
    for number in range(3):
        given = users if number == 0 else users[number * 100 : number * 150]
        if number == 2:
            backend = store.latest().restore("shop")
        state = backend.state(
            arrowstate.ValueStateDescriptor("order", new, evolution=change)
            if number == 2
            else arrowstate.ValueStateDescriptor("order", old)
        )
        values = [{"amount": number, "at": number} if number < 2 else {"total": 2, "at": 2, "currency": "USD"}] * len(
            given
        )
        state.update_batch(given, pa.array(values, new if number == 2 else old))
        backend.state(arrowstate.ReducingStateDescriptor("visits", pa.int64(), reduce="sum")).add_batch(
            given, pa.array([1] * len(given))
        )
        with store.writer() as writer:
            snapshot = writer.checkpoint({"shop": [backend]}, format="parquet")
        if number == 0:
            store.tag("gold")
        store.publish(FOLDER / "tables")
        rows[str(snapshot.checkpoint_id)] = {
            "visits": sum(snapshot.to_arrow("shop.visits")["visits"].to_pylist()),
            "order": sum(snapshot.to_arrow("shop.order")["amount" if number < 2 else "total"].to_pylist()),
        }
    (FOLDER / "expected.json").write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
