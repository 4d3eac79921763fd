"""What the processes around a store do: scripts for the actors of a simulation.

A script is an ordinary program over a storage that fails. It may get every error that the contract of its calls
allows, and goes on as a careful program would; an error that nothing explains is a violation. A zombie needs no
script of its own: it is a writer that the scheduler leaves alone for a while. Two writers are two drivers.
"""

from typing import Literal

import arrowstate
from arrowstate.bootstrap.planning import AskedStates
from arrowstate.bootstrap.tables import TableFill, fill_operators, plan_table
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.files.savepoint import write_savepoint
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.leases import CheckpointLease
from arrowstate.log.timeline import steps_between
from arrowstate.publish.publication import Publish, Publisher
from arrowstate.upkeep.collection import apply_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.compaction import apply_store_compaction, plan_store_compaction
from arrowstate_formats.documents import LogEntryDocument
from simulation.content import (
    MAX_PARALLELISM,
    NOTE,
    OPERATOR,
    Backends,
    Content,
    change,
    content_of,
    loaded,
    new_backends,
    restored_backends,
)
from simulation.process import Process, Script
from simulation.published import FORMATS

__all__ = ["SCRIPTS"]

_LEASE_MS = 1_500


def _write(process: Process) -> None:
    """Open the store for writing a few times; commit checkpoints until something stops it."""
    for _ in range(process.actor.random.randint(1, 3)):
        try:
            _write_until_stopped(process)
        except arrowstate.FencedError:
            continue
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _take_over(process: Process) -> None:
    """Open the store for writing and commit one checkpoint, when nothing can go wrong any more."""
    _write_until_stopped(process, checkpoints=1)


def _write_until_stopped(process: Process, checkpoints: int | None = None) -> None:
    draw, oracle = process.actor.random, process.oracle
    store = process.open()
    writer = CheckpointWriter(
        process.storage, store.store_id, clock_ms=process.actor.clock_ms, new_id=process.actor.new_id
    )
    oracle.opened(writer.epoch)
    started_at_ms = process.now_ms()
    backends, base = _start(process, store)
    newest = oracle.checkpoints()[-1:]
    rollback = [commit.token for commit in newest] != ([] if base is None else [base])
    in_time = all(commit.number not in oracle.late for commit in newest)
    secure = in_time and not rollback and all(commit.acknowledged for commit in newest)
    for _ in range(checkpoints or draw.randint(1, 4)):
        changed = change(backends, draw)
        token = process.token()
        oracle.promise(token, changed.content, base, rollback=rollback)
        committed = _committed(process, writer, changed, token, started_at_ms if secure else None)
        oracle.acknowledged(committed)
        # A plan made before a late commit may still condemn its files, which the next commits refer to. So may one made
        # before a commit that went back to an older checkpoint: what it took from there was garbage to the plan.
        in_time = in_time and not rollback and process.now_ms() - started_at_ms < (process.nominal_grace_ms or 0)
        if not in_time:
            oracle.late.add(committed.number)
        backends, base, rollback, secure, started_at_ms = changed, token, False, in_time, process.now_ms()


def _start(process: Process, store: arrowstate.StateStore) -> tuple[Backends, str | None]:
    """Restore the newest checkpoint, now and then an older one, or the newest that is whole; or begin anew."""
    draw = process.actor.random
    parallelism = draw.randint(1, 2)
    log = CommitLog(process.storage)
    entry = log.latest_checkpoint()
    if entry is None:
        return new_backends(parallelism), None
    if draw.random() < 0.15:
        entry = draw.choice([*log.backwards()] or [entry])
    try:
        return _restored(process, store, entry, parallelism)
    except (arrowstate.CollectedError, arrowstate.CorruptDataError) as error:
        process.explained(error)
    acknowledged = process.oracle.newest_acknowledged()
    try:
        whole = store.latest_whole().entry
        if whole.number < acknowledged:
            process.oracle.violated(f"{process.name} was given {whole.number} as the newest that is whole")
        return _restored(process, store, whole, parallelism)
    except (arrowstate.CollectedError, arrowstate.CorruptDataError) as error:
        process.explained(error)
        if acknowledged:
            process.oracle.violated(f"{process.name} finds no checkpoint that is whole: {error}")
        return new_backends(parallelism), None


def _restored(
    process: Process, store: arrowstate.StateStore, entry: LogEntryDocument, parallelism: int
) -> tuple[Backends, str]:
    token: str = entry.properties["token"]
    content = process.oracle.promises[token].content
    with reading_checkpoint(process.storage, entry):
        return restored_backends(process.storage, store.store_id, entry, parallelism, content), token


def _committed(
    process: Process, writer: CheckpointWriter, backends: Backends, token: str, secure_from_ms: int | None
) -> LogEntryDocument:
    """Commit a checkpoint, trying again after errors that say that nothing was committed.

    `secure_from_ms` is when the first file was written, or None if what the checkpoint goes on from may be collected.
    """
    format: Literal["arrow", "parquet"] = "parquet" if process.actor.random.random() < 0.3 else "arrow"
    for attempt in range(3):
        faults = process.actor.faults
        try:
            with process.attempt():
                return writer.checkpoint(
                    {OPERATOR: backends.keyed},
                    operator_states={OPERATOR: backends.operator},
                    properties={"token": token},
                    format=format,
                )
        except (arrowstate.CollectedError, arrowstate.CommitUnknownError) as error:
            _check_in_time(process, writer, error, faults, secure_from_ms)
            process.explained(error)
            if attempt == 2 or isinstance(error, arrowstate.CommitUnknownError):
                raise
        except arrowstate.StorageError as error:
            process.explained(error)
            if attempt == 2:
                raise
    raise AssertionError("unreachable")


def _check_in_time(
    process: Process,
    writer: CheckpointWriter,
    error: arrowstate.ArrowStateError,
    faults: int,
    secure_from_ms: int | None,
) -> None:
    """Check that no collection stopped a commit that was within its grace period, by the writer that may commit."""
    grace_ms = process.nominal_grace_ms
    if (
        grace_ms is not None
        and secure_from_ms is not None
        and process.now_ms() - secure_from_ms < grace_ms
        and process.actor.faults == faults
        and not process.oracle.late_statement
        and process.oracle.chain[-1].epoch == writer.epoch
    ):
        process.oracle.violated(f"{process.name} lost files to a collection within the grace period: {error}")


def _read(process: Process) -> None:
    """Restore the newest checkpoint, and others, again and again; what is read must be right."""
    draw, oracle = process.actor.random, process.oracle
    for _ in range(draw.randint(2, 5)):
        acknowledged = oracle.newest_acknowledged()
        try:
            store = process.open()
            log = CommitLog(process.storage)
            entry = log.latest_checkpoint()
            if (0 if entry is None else entry.number) < acknowledged:
                oracle.violated(f"{process.name} was given an older checkpoint than {acknowledged} as the newest")
            if entry is not None and draw.random() < 0.3:
                entry = draw.choice([*log.backwards()] or [entry])
            if entry is not None and draw.random() < 0.4:
                _read_leased(process, store, entry)
            elif entry is not None:
                oracle.read(process.name, entry, content_of(process.storage, store.store_id, entry, draw.randint(1, 2)))
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _read_leased(process: Process, store: arrowstate.StateStore, entry: LogEntryDocument) -> None:
    """Read a checkpoint twice under a lease, which nobody may take the files from under."""
    oracle, actor = process.oracle, process.actor
    assert entry.checkpoint_id is not None, "a fence is no checkpoint"
    committed = CommitLog(process.storage).committed_checkpoint(entry.checkpoint_id)
    number = committed.document.number
    lease = CheckpointLease(
        process.storage,
        committed,
        ttl_ms=_LEASE_MS,
        holder=process.name,
        clock_ms=actor.clock_ms,
        new_id=actor.new_id,
        # It is renewed here, not by a thread that nobody schedules.
        wait=lambda _: True,
    )
    for _ in range(2):
        oracle.lease(process.name, number, lease.expires_at_ms)
        try:
            oracle.read(process.name, lease.entry, content_of(process.storage, store.store_id, lease.entry))
        except arrowstate.CorruptDataError as error:
            if oracle.is_leased(process.name):
                oracle.violated(f"{process.name} lost a file of checkpoint {number} under its lease: {error}")
            raise
        actor.wait(20)
        lease.renew()
    oracle.release(process.name)
    lease.release()


def _follow(process: Process) -> None:
    """Read what comes after a checkpoint, one after the other, under a lease that is moved on more slowly."""
    draw = process.actor.random
    for _ in range(draw.randint(3, 6)):
        try:
            store = process.open()
            there = [*CommitLog(process.storage).backwards()]
            if there:
                _follow_on(process, store, draw.choice(there))
        except arrowstate.CheckpointsCollectedError:
            # The lease had ended, or could not be taken in time.
            continue
        except arrowstate.ArrowStateError as error:
            process.explained(error)
        process.actor.wait(draw.choice((20, 60)))


def _follow_on(process: Process, store: arrowstate.StateStore, entry: LogEntryDocument) -> None:
    oracle, actor, log = process.oracle, process.actor, CommitLog(process.storage)
    assert entry.checkpoint_id is not None, "a fence is no checkpoint"
    lease = CheckpointLease(
        process.storage,
        log.committed_checkpoint(entry.checkpoint_id),
        ttl_ms=_LEASE_MS,
        holder=process.name,
        clock_ms=actor.clock_ms,
        new_id=actor.new_id,
        wait=lambda _: True,
        and_later=True,
    )
    for _ in range(actor.random.randint(2, 6)):
        oracle.lease(process.name, lease.entry.number, lease.expires_at_ms, and_later=True)
        actor.wait(actor.random.choice((10, 40, 80)))
        held = lease.entry.checkpoint_id
        try:
            steps = steps_between(log, held, None)
            for step in steps:
                following = log.read(step.after).document
                commit = oracle.commit(following.number)
                if commit is not None and commit.acknowledged:
                    oracle.read(process.name, following, content_of(process.storage, store.store_id, following))
        except (arrowstate.CheckpointsCollectedError, arrowstate.CorruptDataError) as error:
            if oracle.is_leased(process.name):
                oracle.violated(f"{process.name} lost what came after checkpoint {held} under its lease: {error}")
            raise
        if steps:
            moved = log.committed_checkpoint(steps[0].checkpoint_id)
            # Both leases hold it, while one takes the place of the other.
            oracle.lease(process.name, moved.document.number, lease.expires_at_ms, and_later=True)
            lease.advance(moved)
        else:
            lease.renew()
    oracle.release(process.name)
    lease.release()


def _compact(process: Process) -> None:
    """Compact the newest checkpoint again and again, sometimes by a plan that is old."""
    draw, oracle = process.actor.random, process.oracle
    policy = arrowstate.CompactionPolicy(
        max_space_amplification=draw.choice((1.01, 1.5)), max_small_files=draw.choice((1, 4)), min_bytes=0
    )
    for _ in range(draw.randint(2, 4)):
        process.actor.wait(draw.choice((5, 20, 50)))
        try:
            store = process.open()
            plan = plan_store_compaction(process.storage, policy)
            process.actor.wait(draw.choice((0, 0, 30)))
            with process.attempt():
                report = apply_store_compaction(
                    process.storage,
                    store.store_id,
                    plan,
                    clock_ms=process.actor.clock_ms,
                    new_id=process.actor.new_id,
                )
            if report.entry is not None:
                oracle.acknowledged(report.entry)
                oracle.late.add(report.entry.number)
        except (arrowstate.CheckpointNotFoundError, arrowstate.CompactionConflictError):
            process.actor.wait(20)
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _load(process: Process) -> None:
    """Fill the state anew from tables, a few times, while others write too."""
    draw = process.actor.random
    for _ in range(draw.randint(1, 3)):
        process.actor.wait(draw.choice((5, 30, 80)))
        try:
            _load_once(process)
        except arrowstate.FencedError:
            continue
        except arrowstate.InvalidInputError as error:
            # Another one has made the operator meanwhile, with another number of subtasks.
            if "so its parallelism must stay" not in str(error):
                process.explained(error)
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _load_once(process: Process) -> None:
    draw, oracle, actor = process.actor.random, process.oracle, process.actor
    store, started_at_ms = process.open(), process.now_ms()
    entry = CommitLog(process.storage).latest_checkpoint()
    base = None if entry is None else entry.properties["token"]
    table, content = loaded(Content() if base is None else oracle.promises[base].content, draw)
    plan = plan_table(
        process.storage,
        table.schema,
        uid=OPERATOR,
        key=["k"],
        states=AskedStates([NOTE], overwrite=True),
        parallelism=draw.randint(1, 2) if entry is None else None,
        max_parallelism=MAX_PARALLELISM,
        format="parquet" if draw.random() < 0.3 else "arrow",
        new_id=actor.new_id,
        clock_ms=actor.clock_ms,
    )
    if plan.base != (None if entry is None else entry.number):
        # Another one has committed since; its offsets are not those of this content.
        return
    token = process.token()
    oracle.promise(token, content, base, rollback=False)
    fill = TableFill(plan, table.to_batches())
    with process.attempt():
        committed = fill_operators(
            process.storage,
            store.store_id,
            [fill],
            properties={"token": token},
            new_id=actor.new_id,
            clock_ms=actor.clock_ms,
        )
    oracle.acknowledged(committed)
    before = None if entry is None else oracle.commit(entry.number)
    secure = before is None or (before.acknowledged and before.number not in oracle.late)
    if not secure or process.now_ms() - started_at_ms >= (process.nominal_grace_ms or 0):
        oracle.late.add(committed.number)


def _save(process: Process) -> None:
    """Write a savepoint of the newest checkpoint, and another one."""
    for number in range(2):
        folder = f"savepoints/{process.name}-{number}"
        try:
            store = process.open()
            entry = store.latest().entry
            with process.attempt():
                write_savepoint(
                    process.storage,
                    store.store_id,
                    entry,
                    process.folder(folder),
                    new_id=process.actor.new_id,
                    clock_ms=process.actor.clock_ms,
                )
                process.oracle.saved(folder, entry.properties["token"])
        except arrowstate.CheckpointNotFoundError:
            process.actor.wait(20)
        except arrowstate.InvalidInputError as error:
            # What an earlier attempt left, when deleting it failed.
            if not process.actor.faults:
                process.explained(error)
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _tag(process: Process) -> None:
    """Tag checkpoints, and take some of the tags away again."""
    draw, oracle = process.actor.random, process.oracle
    for number in range(draw.randint(1, 3)):
        name = f"{process.name.replace(' ', '-')}-{number}"
        try:
            store = process.open()
            tagged = draw.choice(store.checkpoints() or [store.latest()]).checkpoint_id
            assert tagged is not None, "a fence is no checkpoint"
            store.tag(name, tagged)
            oracle.tag(name)
            process.actor.wait(draw.choice((5, 60)))
            if draw.random() < 0.4:
                oracle.untag(name)
                store.untag(name)
        except arrowstate.CheckpointNotFoundError:
            process.actor.wait(20)
        except arrowstate.NotFoundError as error:
            # Deleting it, the answer was lost.
            if not process.actor.faults:
                process.explained(error)
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _collect(process: Process) -> None:
    """Collect again and again, sometimes by a plan that is old, sometimes twice by the same."""
    draw, oracle = process.actor.random, process.oracle
    policy = arrowstate.RetentionPolicy(count=oracle.retained or 1)
    for _ in range(draw.randint(3, 9)):
        process.actor.wait(draw.choice((5, 20, 50)))
        try:
            process.open()
            now_ms, portions = process.actor.clock_ms(), process.portions
            plan = plan_collection(
                process.storage,
                policy,
                now_ms=now_ms,
                grace_ms=process.grace_ms,
                portions=portions,
                clock_ms=process.actor.clock_ms,
            )
            process.actor.wait(draw.choice((0, 0, 10, 40)))
            for _ in range(draw.choice((1, 1, 2))):
                now_ms, new_id = process.actor.clock_ms(), process.actor.new_id
                apply_collection(process.storage, plan, now_ms=now_ms, new_id=new_id, portions=portions)
        except arrowstate.CorruptDataError as error:
            # A tag that was removed came back with a request that was late; it is to be removed again. Or a tag or a
            # lease that came too late stands in the way until its holder has noticed, or it ends.
            if error.path not in (*oracle.strange_tags(), *oracle.lost_pins()):
                oracle.violated(f"{process.name} found damage, and nothing but collections took files: {error}")
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _publish(process: Process) -> None:
    """Publish to a place again and again, in either format; what is listed then is what the store has."""
    draw = process.actor.random
    for _ in range(draw.randint(2, 5)):
        process.actor.wait(draw.choice((5, 30, 60)))
        try:
            _publish_once(process, draw.choice(FORMATS), draw.choice((1, 3)))
            process.oracle.check_published(f"{process.name} has published")
        except arrowstate.CheckpointNotFoundError:
            process.actor.wait(20)
        except arrowstate.ArrowStateError as error:
            process.explained(error)


def _publish_all(process: Process) -> None:
    """Publish in each format, when nothing can go wrong any more."""
    for format in FORMATS:
        _publish_once(process, format, 3)


def _publish_once(process: Process, format: Literal["iceberg", "delta"], history: int) -> None:
    store, target = process.open(), process.place(format)
    publish = Publish(to=target.url, format=format, history=history)
    clock_ms, new_id = process.actor.clock_ms, process.actor.new_id
    Publisher(process.storage, store.store_id, target, publish, clock_ms=clock_ms, new_id=new_id).publish()


SCRIPTS: dict[str, Script] = {
    "writer": _write,
    "successor": _take_over,
    "reader": _read,
    "follower": _follow,
    "compactor": _compact,
    "loader": _load,
    "savepoint": _save,
    "tagger": _tag,
    "collector": _collect,
    "publisher": _publish,
    "last": _publish_all,
}
"""Every kind of process, by the first word of the names of its actors."""
