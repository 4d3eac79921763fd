"""Random edits of state of every kind are what the same statements are on plain tables."""

from collections import Counter

import numpy as np
import pytest

import arrowstate
from edit_model import NOW_MS, OPERATOR, Job, Plain, Statements, stored_rows
from long_form import TURN, short_or_long
from stores import commit


def a_store(name):
    store = arrowstate.open_store(name, create=True)
    return arrowstate.StateStore(store.storage, store.store_id, clock_ms=lambda: NOW_MS)


def counts_between(before, after, columns):
    """How many rows came, changed and went, from the rows of both."""
    names = [*columns.identity, *(["_seq"] if columns.is_list else [])]
    old, new = (
        {repr([row[name] for name in names]): repr(row) for row in table.to_pylist()} for table in (before, after)
    )
    same = old.keys() & new.keys()
    return len(new) - len(same), sum(old[key] != new[key] for key in same), len(old) - len(same)


@pytest.mark.parametrize(
    "seed", [TURN * 3 + number for number in range(3)] if short_or_long(True, False) else range(300)
)
def test_edits_are_what_plain_tables_become(seed):
    random = np.random.default_rng(seed)
    store = a_store(f"memory://edit-model-{seed}")
    job = Job(store, random)
    base = store.latest()
    plain = Plain(base)
    said = []

    with store.edit() as edit:
        statements = Statements(job, plain, edit)
        for _ in range(int(random.integers(2, 8))):
            said.append(statements.one())
            plain.check(edit.snapshot, f"{said[-1]}, statement {len(said)} of seed {seed}")
        plan = edit.plan()
        committed = edit.commit(comment=f"seed {seed}")

    found = store.latest()
    assert found.checkpoint_id == committed.checkpoint_id
    plain.check(found, f"the commit of seed {seed}")
    assert store.verify(deep=True).problems == []
    differ = {item.state: (item.inserted, item.updated, item.deleted) for item in plan.difference.states}
    for name, columns in plain.columns.items():
        both = [stored_rows_all(snapshot, name, columns) for snapshot in (base, found)]
        assert differ[name] == counts_between(*both, columns), (name, said)
    restored_is(found, job, plain, random)


def stored_rows_all(snapshot, name, columns):
    return snapshot.to_arrow(("op", name), columns=columns.all, expired=True)


def restored_is(snapshot, job, plain, random):
    """A job that starts from it, whatever its parallelism, has its rows."""
    count = int(random.integers(1, 4))
    backends = [
        snapshot.restore("op", parallelism=count, subtask=number, clock_ms=lambda: NOW_MS) for number in range(count)
    ]
    for backend in backends:
        for descriptor in job.states:
            backend.state(descriptor)
    operator = [snapshot.restore_operator_state("op", parallelism=count, subtask=number) for number in range(count)]
    for each in operator:
        for descriptor in OPERATOR:
            each.state(descriptor)
    again = a_store(f"{snapshot.storage.url}-again")
    commit(again, {"op": backends}, operator_states={"op": operator}, watermark=snapshot.watermark)
    for name, columns in plain.columns.items():
        both = [Counter(map(repr, stored_rows(each, name, columns).to_pylist())) for each in (snapshot, again.latest())]
        assert both[0] == both[1], name
