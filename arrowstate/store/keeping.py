"""What a store keeps: checkpoints that are held by tags and leases, and what is collected and compacted."""

from __future__ import annotations

from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.errors import CheckpointNotFoundError
from arrowstate.files.references import ReferenceReader
from arrowstate.log.choosing import CheckpointReference
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.leases import DEFAULT_LEASE_MS
from arrowstate.log.pins import delete_tag, put_tag
from arrowstate.store.plans import Collection, Compaction, Lease
from arrowstate.store.reading import ReadableStore
from arrowstate.upkeep.collection_plan import check_grace, plan_collection
from arrowstate.upkeep.compaction import (
    plan_store_compaction,
)
from arrowstate.upkeep.planned import DEFAULT_GRACE_MS
from arrowstate.upkeep.retention import RetentionPolicy


class KeptStore(ReadableStore):
    """A store whose checkpoints are held, collected and compacted."""

    def tag(self, name: str, checkpoint: CheckpointReference | None = None) -> None:
        """Keep a checkpoint, the newest by default, until the tag is removed.

        Parameters
        ----------
        name
            1 to 128 characters out of letters, digits, `_`, `-` and `.`, the first a letter or digit.
        checkpoint
            The id of the checkpoint.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint, or it is being collected.
        InvalidInputError
            If there is a tag of this name, or it cannot be one.
        CollectedError
            If a collection took files of the checkpoint.
        CorruptDataError
            If files of it are missing for another reason, or are being collected.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://tag-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> store.tag("gold", 1)
        >>> _ = store.collect(arrowstate.RetentionPolicy(count=1)).apply()
        >>> [snapshot.checkpoint_id for snapshot in store.checkpoints()], store.tags()
        ([1, 3], {'gold': 1})
        """
        entry = self._committed(checkpoint)
        assert entry.document.checkpoint_id is not None, "a fence is no checkpoint"
        with reading_checkpoint(self.storage, entry.document):
            is_tagged = put_tag(
                self.storage,
                name,
                entry.document.checkpoint_id,
                entry.as_parent,
                files=ReferenceReader(self.storage).files(entry.document.operators),
                tag_id=self.new_id(),
                now_ms=self.clock_ms(),
            )
        if not is_tagged:
            there = (other.checkpoint_id for other in self._log.backwards())
            ids = sorted(number for number in there if number is not None)
            raise CheckpointNotFoundError(entry.document.checkpoint_id, ids)

    def untag(self, name: str) -> None:
        """Remove a tag; NotFoundError if there is none of this name."""
        delete_tag(self.storage, name)

    def lease(
        self,
        checkpoint: CheckpointReference | None = None,
        *,
        ttl_ms: int = DEFAULT_LEASE_MS,
        holder: str = "",
        and_later: bool = False,
    ) -> Lease:
        """Keep a checkpoint, the newest by default, from being collected while it is read, in a `with` block.

        A thread renews the lease. A process that dies leaves one that ends by itself.

        Parameters
        ----------
        checkpoint
            The id of the checkpoint.
        ttl_ms
            How long it lasts without renewal, in milliseconds, at least 1.
        holder
            Who reads, for those who look at the store.
        and_later
            Whether all checkpoints after it are kept too, for who reads what changed from one to the next. Versions of
            arrowstate from before know no such leases: they collect nothing while there is one.

        Returns
        -------
        Lease
            Holds the checkpoint until the end of the block; `snapshot` reads it.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint, or it is being collected.
        CheckpointsCollectedError
            If with `and_later` one after it was collected, or is being.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://lease-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]})
        >>> with store.lease() as lease:
        ...     rows = lease.snapshot.to_arrow("people.city").num_rows
        >>> rows
        1
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> with store.lease(2, and_later=True):
        ...     _ = store.collect(arrowstate.RetentionPolicy(count=1)).apply()
        ...     [snapshot.checkpoint_id for snapshot in store.checkpoints()]
        [2, 3, 4]
        """
        return Lease(self, self._committed(checkpoint), ttl_ms=ttl_ms, holder=holder, and_later=and_later)

    def collect(
        self,
        policy: RetentionPolicy | None = None,
        *,
        grace_ms: int = DEFAULT_GRACE_MS,
        allow_short_grace: bool = False,
    ) -> Collection:
        """Plan to delete what no checkpoint that is kept needs; nothing is deleted before `apply()` of the result.

        Parameters
        ----------
        policy
            Which checkpoints are kept, the newest only by default. Tags, leases and savepoints keep theirs besides.
        grace_ms
            How long a file that no checkpoint has referred to waits, counted from the first applied collection that
            saw it, in milliseconds, at least 60,000. It should be longer than any checkpoint takes. The checkpoint that
            the newest compaction repeats is kept as long, for its writer to go on from it.
        allow_short_grace
            Take a shorter grace period, from 0. Where somebody writes to the store, a collection may then take the
            files of a checkpoint that is being written, which fails or is not acknowledged.

        Returns
        -------
        Collection
            `plan` says what would go and why, what waits, and what nobody knows; `apply()` does it and returns what was
            deleted and what was spared because it had become needed meanwhile.

        Raises
        ------
        CorruptDataError, FormatVersionError
            If a checkpoint that is kept is damaged, or something is there that this version does not know.
        InvalidInputError
            If the grace period is below a minute and `allow_short_grace` is false.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://collect-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> collection = store.collect(arrowstate.RetentionPolicy(count=2))
        >>> collection.plan.dropped, [deletion.path for deletion in collection.plan.deletions]
        ((1,), ['log/00000000000000000001.json', 'log/00000000000000000002.json'])
        >>> len(collection.apply().deleted)
        2
        """
        check_grace(grace_ms, allow_short=allow_short_grace)
        policy = RetentionPolicy() if policy is None else policy
        now_ms = self.clock_ms()
        plan = plan_collection(self.storage, policy, now_ms=now_ms, grace_ms=grace_ms, clock_ms=self.clock_ms)
        return Collection(self, plan)

    def compact(self, policy: CompactionPolicy | None = None) -> Compaction:
        """Plan to write the newest checkpoint in fewer and fuller files; nothing is written before `apply()`.

        For a store that nobody writes to, or a part of it that nobody writes to: a writer compacts its own state with
        each checkpoint. Nobody is fenced or waited for; a checkpoint that is committed meanwhile stands, and what it no
        longer shares with the plan is dropped from it. The old files go with the checkpoints that refer to them, see
        `collect`: after the grace period a compaction counts in the place of the checkpoint that it repeats.

        Parameters
        ----------
        policy
            How much more than the live rows a state may take, and in how many small files; by default twice as much.

        Returns
        -------
        Compaction
            `plan` says what the checkpoint takes and what would be merged. `apply()` does it, commits the result as a
            checkpoint with the same content, properties and watermark, and returns it.

        Raises
        ------
        CheckpointNotFoundError
            If there is no checkpoint yet.
        CorruptDataError
            If the log or a manifest is damaged.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://compact-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=128)
        >>> total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
        >>> total.add_batch(range(10_000), [1] * 10_000)
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"op": [backend]})
        ...     total.clear_batch(range(4_000))
        ...     before = writer.checkpoint({"op": [backend]}, properties={"offset": 42})
        >>> compaction = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.5))
        >>> after = compaction.apply()
        >>> before.storage_use().space_amplification > 1.5 > after.storage_use().space_amplification
        True
        >>> after.checkpoint_id, after.properties, after.to_arrow("op.total").num_rows
        (2, {'offset': 42}, 6000)
        """
        policy = CompactionPolicy() if policy is None else policy
        return Compaction(self, plan_store_compaction(self.storage, policy))
