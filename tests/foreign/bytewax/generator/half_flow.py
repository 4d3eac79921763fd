"""Makes the fixture `half-flow`: the recovery store of a Bytewax dataflow that was stopped after half its input.

```text
python -m venv bytewax && bytewax/bin/pip install bytewax==0.21.1
bytewax/bin/python tests/foreign/bytewax/generator/half_flow.py FOLDER
```

The dataflow is run to the middle, its recovery store is copied, and then Bytewax goes on to the end: `truth.json` says
what the dataflow emitted last for each user, in the first half and in the whole.
"""

import json
import shutil
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import bytewax.operators as op
import bytewax.operators.windowing as windows
from bytewax.dataflow import Dataflow
from bytewax.operators.windowing import EventClock, TumblingWindower
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import TestingSink, TestingSource, run_main

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = 2_000


@dataclass
class Best:
    """What is known of a user."""

    highest: int = 0
    seen: list = field(default_factory=list)
    total: Decimal = Decimal(0)


def rows():
    """Users, and an amount with its time."""
    return [(f"user {n * n % 17}", (n % 101, START + timedelta(seconds=n))) for n in range(ROWS)]


def best(state, value):
    """Keep the highest amount of a user, the first three, and their sum."""
    state = state or Best()
    state.highest = max(state.highest, value[0])
    state.seen = [*state.seen, value[0]][:3]
    state.total += Decimal(value[0]) / 4
    # A user is forgotten after a hundred.
    return (None if value[0] == 100 else state), value[0]


def flow(inputs, emitted):
    """The dataflow: a sum, an object, and a window by user."""
    made = Dataflow("payments")
    stream = op.input("read", made, TestingSource(inputs, batch_size=10))
    sums = op.stateful_map("sum", stream, lambda total, value: ((total or 0) + value[0],) * 2)
    bests = op.stateful_map("best", stream, best)
    clock = EventClock(lambda value: value[1], wait_for_system_duration=timedelta(seconds=10))
    windower = TumblingWindower(length=timedelta(minutes=10), align_to=START)
    opened = windows.fold_window(
        "minutes", stream, clock, windower, lambda: 0, lambda total, value: total + value[0], lambda a, b: a + b
    )
    op.output("sums", sums, TestingSink(emitted))
    op.output("bests", bests, TestingSink([]))
    op.output("windows", opened.down, TestingSink([]))
    return made


def main(folder):
    """Write the recovery store and the truth."""
    place = Path(folder) / "half-flow"
    store, going_on = place / "recovery", place / "going-on"
    store.mkdir(parents=True)
    init_db_dir(store, 2)
    inputs = rows()
    inputs.insert(ROWS // 2, TestingSource.ABORT())
    first, second = [], []
    run_main(flow(inputs, first), epoch_interval=timedelta(0), recovery_config=RecoveryConfig(str(store)))
    shutil.copytree(store, going_on)
    run_main(flow(inputs, second), epoch_interval=timedelta(0), recovery_config=RecoveryConfig(str(going_on)))
    shutil.rmtree(going_on)
    truth = {"rows": len(first), "first": dict(first), "whole": {**dict(first), **dict(second)}}
    (place / "truth.json").write_text(json.dumps(truth, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
