"""A backend from a checkpoint: the runs of its key groups, cut and brought to today's schemas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.files.reading import find_operator, open_runs, runs_by_state
from arrowstate.files.savepoint_rows import cutoff_of
from arrowstate.files.subtasks import restored_watermark, subtasks_of
from arrowstate.files.validation import validated_savepoint
from arrowstate.schema.evolution import SchemaEvolution
from arrowstate.schema.layout import (
    key_schema_of,
)
from arrowstate.schema.versions import (
    RunSchemas,
    check_drop_and_rename,
    evolve_key,
    with_key,
    with_name,
)
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.rekeying import check_merge_rules, moves_keys, rekeyed
from arrowstate.storage.base import Storage
from arrowstate.table.merging import MergePolicy
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import key_group_range

_logger = logging.getLogger("arrowstate.state")


def restore_backend(
    storage: Storage,
    store_id: str,
    entry: LogEntryDocument,
    uid: str,
    *,
    parallelism: int = 1,
    subtask: int = 0,
    max_parallelism: int | None = None,
    memory_budget_bytes: int | None = None,
    spill_dir: str | Path | None = None,
    merge_policy: MergePolicy | None = None,
    clock_ms: Callable[[], int] = now_ms,
    key: pa.Schema | None = None,
    evolution: SchemaEvolution | None = None,
    drop: Collection[str] = (),
    rename: Mapping[str, str] = MappingProxyType({}),
) -> KeyedStateBackend:
    """Return the backend of one subtask of a checkpoint, at any parallelism and any max parallelism.

    The run files are mapped and cut to the subtask's range of hashes; no row is rewritten, unless the key changes in
    more than the names of its columns.
    """
    operator = find_operator(entry, uid)
    if not operator.key:
        raise InvalidInputError(f"operator {uid!r} has operator state only; restore it with restore_operator_state")
    before = key_fields = operator.key
    if key is not None:
        before, key_fields = evolve_key(uid, operator.key, key, evolution or SchemaEvolution(), operator.states)
    elif evolution is not None:
        raise InvalidInputError("evolution says what becomes of the key; pass the new key too")
    maximum = operator.max_parallelism if max_parallelism is None else max_parallelism
    key_groups = key_group_range(maximum, parallelism=parallelism, subtask=subtask)
    backend = KeyedStateBackend(
        key=key_schema_of(key_fields),
        max_parallelism=maximum,
        key_groups=key_groups,
        memory_budget_bytes=memory_budget_bytes,
        spill_dir=spill_dir,
        merge_policy=merge_policy,
        clock_ms=clock_ms,
    )
    moves = moves_keys(operator.key, key_fields)
    bounds = key_groups.hash_bounds(maximum)
    subtasks = subtasks_of(storage, operator, None if moves else bounds)
    documents = runs_by_state(storage, operator, subtasks)
    watermark = restored_watermark(entry, subtasks)
    if watermark is not None:
        backend.advance_watermark(watermark)
    storage = validated_savepoint(storage, entry)
    merge = {} if evolution is None else evolution.merge
    check_merge_rules(merge, operator.states)
    check_drop_and_rename(uid, operator.states, drop, rename)
    states = []
    for stored in operator.states:
        if stored.name in drop:
            continue
        state = stored if key_fields == operator.key else with_key(stored, before, key_fields)
        schemas = RunSchemas(key_fields, state)
        if moves:
            schemas_before = RunSchemas(operator.key, stored)
            opened = open_runs(storage, store_id, documents.get(stored.name, []), schemas_before)
            expired = cutoff_of(state.time_to_live, clock_ms(), backend.watermark)
            moved = [run for run, _ in opened]
            runs = rekeyed(schemas_before, schemas, moved, bounds, merge.get(state.name), expired)
        else:
            opened = open_runs(storage, store_id, documents.get(stored.name, []), schemas, hash_bounds=bounds)
            runs = tuple(run for run, _ in opened)
        if stored.name in rename:
            before_name, state = state, with_name(state, rename[stored.name], key_fields)
            _, convert = RunSchemas(key_fields, state).of_version(before_name.schema_version)
            assert convert is not None, "an older version is never the current one"
            runs = tuple(run.with_conversion(convert) for run in runs)
        states.append((state, runs))
    backend.take_up(key_fields, states, [*drop, *rename])
    fields = {
        "store": storage.url,
        "operator": uid,
        "checkpoint_id": entry.checkpoint_id,
        "key_groups": f"{key_groups.start} to {key_groups.end}",
        "rows": sum(run.live_rows for _, runs in states for run in runs),
    }
    _logger.debug("%(operator)s: %(rows)d rows of key groups %(key_groups)s restored", fields, extra=fields)
    return backend
