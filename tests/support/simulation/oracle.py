"""What must hold at every moment of a simulated store, and who finds out when it does not.

The oracle sees each change of the storage as it happens, whatever the actors are told of it, and it keeps its own
account of the log: it reads entries and manifests as plain JSON, and knows by a token in the properties of each
checkpoint what state the checkpoint must hold. It never raises into an actor, which might handle the error; it
notes the first violation, and the run ends there.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from arrowstate.errors import ArrowStateError
from arrowstate.log.boundary import number_of, path_of
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import open_store_document
from arrowstate.publish.held import OWN_TAGS
from arrowstate.storage.base import Storage
from arrowstate.storage.memory import MemoryStorage
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.run_files import checksum
from simulation.content import Content, content_of
from simulation.published import Shown, shown

__all__ = ["Commit", "Oracle"]

_PINS = ("leases/", "tags/")


@dataclass(slots=True)
class Commit:
    """An entry that came into the log as its newest."""

    number: int
    commit_id: str
    epoch: int
    kind: str
    checkpoint_id: int | None
    token: str | None
    "Names the state that a checkpoint holds."
    digest: str
    "Checksum of its bytes."
    files: frozenset[str]
    "Every file that it refers to, itself included."
    acknowledged: bool = False
    restored: bool = False
    "Whether it was restored in full; the same bytes restore to the same state."
    found: int = 0
    "The version of the log at which it was last found by its id."
    doubted: bool = False
    "Whether it lacked a file, or one was going, while it was the newest; it may have been spared since."


@dataclass(slots=True)
class Promise:
    """What a checkpoint with a token must hold."""

    content: Content
    base: str | None
    "Token of the checkpoint that its writer went on from."
    rollback: bool
    "Whether the writer went back on purpose, to a checkpoint that is not the newest."


@dataclass
class Oracle:
    """Keeps the account of one store.

    Parameters
    ----------
    storage
        The storage itself, below everything that goes wrong.
    store_id
        The identity of the store.
    """

    storage: Storage
    store_id: str = ""
    violation: str | None = None
    "The first thing that must not have happened."
    promises: dict[str, Promise] = field(default_factory=dict)
    chain: list[Commit] = field(default_factory=list)
    "All commits, those whose entries were collected since too."
    written: dict[str, str] = field(default_factory=dict)
    "Checksum of each file that is there, hints excepted."
    savepoints: dict[str, str] = field(default_factory=dict)
    "Token of each finished savepoint, by its folder."
    deletions: int = 0
    "How many files were deleted so far."
    statements: int = 0
    "How often a collection said so far what goes, which is when it goes for whoever reads the log."
    late: set[int] = field(default_factory=set)
    "Commits whose files, or those that they took over, had waited for longer than the grace period, or may have."
    late_statement: bool = False
    "Whether one came with a request that was late, when its collection had died: it condemns what may be referred to."
    version: int = 1
    "Counts what changes the log, and which of its entries count."
    checked: int = 0
    "The version at the last `check_newest`."
    manifests: dict[str, frozenset[str]] = field(default_factory=dict)
    "The files that each manifest refers to, by its checksum."
    retained: int | None = None
    "How many checkpoints collectors keep; None: there is no collector, and nothing that was committed may go."
    tags: dict[str, int] = field(default_factory=dict)
    "Number of the entry that each tag holds."
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    "By holder the number of the entry that is leased, and until when in milliseconds."
    places: dict[str, Storage] = field(default_factory=dict)
    "Where the store is published to, by the format, below everything that goes wrong."
    followers: set[str] = field(default_factory=set)
    "Those of them whose lease holds what comes after the entry, too."
    _pin_numbers: dict[str, int] = field(default_factory=dict)
    "Number of the entry that each file of a tag or a lease names, of those that went too."
    _lost_pins: set[str] = field(default_factory=set)
    "Files of tags and leases that held nothing when they went; whoever had read them before finds that out after."
    now_ms: Callable[[], int] = lambda: 0
    "The time in milliseconds."
    trust_clocks: bool = True
    "Whether all clocks show it; otherwise a lease may end at any time."

    def violated(self, what: str) -> None:
        """Note a violation; only the first counts."""
        if self.violation is None:
            self.violation = what

    # What actors promise and are told.

    def promise(self, token: str, content: Content, base: str | None, *, rollback: bool) -> None:
        """Note what the checkpoint with a token will hold, if it is ever committed."""
        self.promises[token] = Promise(content, base, rollback)

    def acknowledged(self, document: LogEntryDocument) -> None:
        """Check a commit that a writer was told of: it is in the log, its only winner, and whole.

        A writer that slept after its commit may hear of it when others have gone on from it, and newer checkpoints have
        taken its place in what is kept.
        """
        number, id = document.number, document.commit_id
        commit = self.commit(number)
        if commit is None or commit.commit_id != id:
            winner = "nobody" if commit is None else commit.commit_id
            self.violated(f"log number {number} was acknowledged to {id}, but {winner} has it")
            return
        if commit.acknowledged:
            self.violated(f"log number {number} was acknowledged twice")
        commit.acknowledged = True
        if commit in self.held():
            self.check_content(commit, "was just acknowledged")

    def opened(self, epoch: int) -> None:
        """Check that a writer that was opened has a fence of its own."""
        fences = [commit for commit in self.chain if (commit.kind, commit.epoch) == ("fence", epoch)]
        if len(fences) != 1 or fences[0].acknowledged:
            self.violated(f"a writer was opened with the epoch {epoch}, of which it has no fence of its own")
        else:
            fences[0].acknowledged = True

    def read(self, actor: str, document: LogEntryDocument, content: Content) -> None:
        """Check what a reader found in a checkpoint."""
        token = document.properties.get("token")
        if token not in self.promises:
            self.violated(f"{actor} read checkpoint {document.checkpoint_id}, which nobody wrote")
        elif self.promises[token].content != content:
            self.violated(f"{actor} read a wrong answer from checkpoint {document.checkpoint_id}")

    # What happens on the storage.

    def created(self, path: str) -> None:
        """Account for a file that appeared, or was replaced."""
        self._touched(path)
        data = self.storage.read(path)
        digest = checksum(data)
        if self.written.get(path, digest) != digest:
            self.violated(f"{path} was overwritten by other bytes")
        is_new = path not in self.written
        self.written[path] = digest
        self.statements += path.startswith("gc/")
        if path.startswith(_PINS):
            self._pin_numbers[path] = json.loads(data)["entry"]["number"]
        if is_new and path.startswith("log/"):
            self._appended(path, data, digest)
        if is_new and path.startswith(("log/", "gc/")):
            self._doubt_newest()

    def deleted(self, path: str) -> None:
        """Account for a file that went."""
        if self.written.pop(path, None) is None:
            return
        self._touched(path)
        if path.startswith(_PINS) and self._is_lost(path):
            self._lost_pins.add(path)
        self.deletions += 1
        if self.chain and path in self.chain[-1].files:
            self._doubt_newest()
        if path in self.live():
            self.violated(f"{path} was deleted, which a live root refers to")
        self.check_acknowledged()

    def hinted(self) -> None:
        """Account for a change of the hint."""
        self.version += 1

    def _touched(self, path: str) -> None:
        # What decides which entry is found as the newest, and which are found at all.
        if path.startswith(("log/", "gc/", "tags/", "leases/")):
            self.version += 1

    def _appended(self, path: str, data: bytes, digest: str) -> None:
        entry = json.loads(data)
        number = entry["number"]
        following = len(self.chain) + 1
        if number > following:
            self.violated(f"{path} leaves a gap in the log, {following} is the next number")
        if number != following:
            # A name that a collector deleted was made again. It is no commit, and must not be acknowledged.
            return
        parent = entry["parent"]
        before = self.chain[-1] if self.chain else None
        if (parent and (parent["number"], parent["xxh3_128"])) != (before and (before.number, before.digest)):
            self.violated(f"{path} was not written after the entry before it")
        epoch, kind, token = entry["writer_epoch"], entry["kind"], entry["properties"].get("token")
        newest_epoch = before.epoch if before else 0
        if epoch != newest_epoch + (kind == "fence"):
            self.violated(f"{path} has the epoch {epoch} of a fenced writer, the newest is {newest_epoch}")
        files = frozenset([path, *_paths(entry["operators"])]).union(
            *(self._files(subtask["manifest"]) for operator in entry["operators"] for subtask in operator["subtasks"])
        )
        if kind != "fence":
            if not self._takes_back(path, kind, token, files):
                self._check_history(number, token, kind)
            self._check_id(entry["checkpoint_id"], kind)
        elif (content := entry["content"]) is not None and (named := self.commit(content["number"])) is not None:
            # A fence repeats nothing, so it needs what it names.
            files |= named.files
        self.chain.append(Commit(number, entry["commit_id"], epoch, kind, entry["checkpoint_id"], token, digest, files))

    def _files(self, manifest: Mapping[str, Any]) -> frozenset[str]:
        """Return the files that a manifest refers to."""
        if manifest["inline"] is not None:
            return frozenset(_paths(manifest["inline"]))
        digest = manifest["xxh3_128"]
        if digest not in self.manifests:
            try:
                data = self.storage.read(manifest["path"])
            except OSError:
                # Gone before the commit: what it held is unknown, and its own path is accounted for.
                return frozenset()
            self.manifests[digest] = frozenset(_paths(json.loads(data)))
        return self.manifests[digest]

    def _check_id(self, checkpoint_id: int, kind: str) -> None:
        """Check that ids rise one by one from 1, and that a compaction has that of the checkpoint it repeats."""
        newest = max((commit.checkpoint_id or 0 for commit in self.checkpoints()), default=0)
        if checkpoint_id != newest + (kind != "compaction"):
            self.violated(f"the {kind} after checkpoint {newest} has the id {checkpoint_id}")

    def _takes_back(self, path: str, kind: str, token: str | None, files: frozenset[str]) -> bool:
        """Whether an entry repeats the checkpoint before one in doubt, whose writer does not go on."""
        before = self.checkpoints()[-2:]
        if len(before) < 2 or before[1] is not self.chain[-1] or before[1].kind != kind or before[1].acknowledged:
            return False
        held, doubtful = before
        return doubtful.doubted and held.token == token and held.files - {path_of(held.number)} == files - {path}

    def _doubt_newest(self) -> None:
        """Note whether the newest entry lacks a file, or a collection may be deleting one."""
        if self.chain and not self.chain[-1].doubted:
            documents = [path for path in self.written if path.startswith("gc/condemned-")]
            going = {path for name in documents for path in json.loads(self.storage.read(name))["condemned"]}
            self.chain[-1].doubted = not self.whole(self.chain[-1]) or not going.isdisjoint(self.chain[-1].files)

    def taken_back(self, made: list[str], actor: str) -> None:
        """Check what a commit leaves that was not to be there: nothing, or the checkpoint before it once more."""
        numbers = [number_of(path) for path in made if path.startswith("log/")]
        commits = [commit for number in numbers if number is not None and (commit := self.commit(number)) is not None]
        own = [commit for commit in commits if commit.kind != "fence"]
        if not own:
            return
        held = [commit for commit in self.checkpoints() if commit.number < own[0].number][-1:]
        if len(own) != 2 or not held or own[1].token != held[0].token:
            self.violated(f"{actor} was told that nothing was committed, and {own[0].number} is not taken back")
        elif held[0].acknowledged:
            own[1].acknowledged = True
            if own[1] in self.held():
                self.check_content(own[1], "takes back one in doubt")

    def _check_history(self, number: int, token: str | None, kind: str) -> None:
        promise = self.promises.get(token or "")
        if promise is None:
            self.violated(f"the checkpoint {number} holds what nobody wrote")
            return
        known = [None, *(commit.token for commit in self.checkpoints())]
        if kind == "compaction":
            if token != known[-1]:
                self.violated(f"the compaction {number} repeats another checkpoint than the one before it")
            return
        if promise.base not in (known if promise.rollback else known[-1:]):
            self.violated(f"the checkpoint {number} goes on from another one than that before it")

    def tag(self, name: str) -> None:
        """Note that a checkpoint is tagged; it must be whole, and stay so."""
        number = json.loads(self.storage.read(f"tags/{name}.json"))["entry"]["number"]
        self.tags[name] = number
        self._pinned(number, f"the tag {name}")

    def untag(self, name: str) -> None:
        """Note that a tag is about to go."""
        del self.tags[name]

    def lease(self, holder: str, number: int, expires_at_ms: int, *, and_later: bool = False) -> None:
        """Note that a checkpoint is leased, or it and all after it."""
        self.leases[holder] = (number, expires_at_ms)
        if and_later:
            self.followers.add(holder)

    def is_leased(self, holder: str) -> bool:
        """Whether a lease must still hold."""
        number, expires_at_ms = self.leases.get(holder, (0, 0))
        commit = self.commit(number)
        return commit is not None and commit.acknowledged and self.trust_clocks and expires_at_ms > self.now_ms()

    def _leased(self) -> set[int]:
        held = {holder for holder in self.leases if self.is_leased(holder)}
        followed = min((self.leases[holder][0] for holder in held & self.followers), default=len(self.chain))
        return {*(self.leases[holder][0] for holder in held), *range(followed, len(self.chain))}

    def release(self, holder: str) -> None:
        """Note that a lease is about to end."""
        self.leases.pop(holder, None)
        self.followers.discard(holder)

    def _pinned(self, number: int, what: str) -> None:
        commit = self.commit(number)
        if commit is None or not self.whole(commit):
            self.violated(f"{what} was acknowledged, and the checkpoint {number} lacks files")

    def saved(self, folder: str, token: str) -> None:
        """Check a savepoint that is finished, and keep it for ever."""
        self.savepoints[folder] = token
        self.check_savepoint(folder)

    def settled(self, made: list[str], why: str) -> None:
        """Check that an attempt without any fault left no file that nothing refers to."""
        referenced = set().union(*(commit.files for commit in self.chain))
        for path in made:
            if path in self.written and path not in referenced and not self._is_saved(path):
                self.violated(f"{path} was left behind by {why}")

    # What must hold.

    def commit(self, number: int) -> Commit | None:
        """Return the commit with a number, whether or not its entry was collected."""
        return self.chain[number - 1] if 1 <= number <= len(self.chain) else None

    def checkpoints(self) -> list[Commit]:
        """Return the committed checkpoints, oldest first."""
        return [commit for commit in self.chain if commit.kind != "fence"]

    def held(self) -> list[Commit]:
        """Return the acknowledged checkpoints that are kept, by the retention, a tag or a lease."""
        checkpoints = self.checkpoints()
        numbers = {*self._leased(), *self.tags.values()}
        # A compaction counts in the place of the checkpoint that it repeats, and has its id. What is repeated after a
        # checkpoint in doubt has an id of its own, and counts besides.
        latest = {commit.checkpoint_id: commit for commit in checkpoints}
        kept = checkpoints if self.retained is None else [*latest.values()][-self.retained :]
        numbers.update(commit.number for commit in kept)
        return [commit for commit in checkpoints if commit.acknowledged and commit.number in numbers]

    def live(self) -> set[str]:
        """Return the files that nobody may delete."""
        live = {path for path in self.written if self._is_saved(path)}
        if self.chain:
            live.add(path_of(self.chain[-1].number))
        if self.retained is None:
            return live.union(*(commit.files for commit in self.chain))
        return live.union(*(commit.files for commit in self.held()))

    def whole(self, commit: Commit) -> bool:
        """Whether every file of a commit is there."""
        return commit.files <= self.written.keys()

    def doubtful(self) -> bool:
        """Whether there is a checkpoint that nobody was told of, and that lacks a file."""
        return any(not commit.acknowledged and not self.whole(commit) for commit in self.checkpoints())

    def _is_saved(self, path: str) -> bool:
        return any(path.startswith(f"{folder}/") for folder in self.savepoints)

    def newest_acknowledged(self) -> int:
        """Return the number of the newest checkpoint that a writer was told of; 0 if there is none."""
        return max((commit.number for commit in self.checkpoints() if commit.acknowledged), default=0)

    def strange_tags(self) -> list[str]:
        """Return the files of tags that nobody was told of, and that hold no checkpoint which a table lists."""
        known = {f"tags/{name}.json" for name in self.tags}
        ends = tuple(f"-{item.number}.json" for item in self._shown())
        return sorted(
            path
            for path in self.written
            if path.startswith("tags/")
            and path not in known
            and not (path.startswith(f"tags/{OWN_TAGS}") and path.endswith(ends))
        )

    def _shown(self) -> list[Shown]:
        return [item for format, place in self.places.items() for item in shown(format, self.storage, place)]

    def check_published(self, why: str, *, is_newest: bool = False) -> None:
        """Check that each checkpoint which a table lists is there, and is what the store has; the newest at the end."""
        for format, place in self.places.items():
            try:
                found = shown(format, self.storage, place)
            except (ArrowStateError, OSError, LookupError) as error:
                self.violated(f"{why}, tables of {format} cannot be read: {type(error).__name__}: {error}")
                return
            for item in found:
                commit = self.commit(item.number)
                promise = None if commit is None else self.promises.get(commit.token or "")
                if promise is None:
                    self.violated(f"{why}, a table of {format} shows the entry {item.number}, which is no checkpoint")
                elif item.notes != {key: note for key, note in enumerate(promise.content.notes) if note is not None}:
                    self.violated(f"{why}, a table of {format} shows other rows than the checkpoint {item.number} has")
            numbers = {item.number for item in found}
            if is_newest and len([path for path in self.written if path.startswith(f"tags/{OWN_TAGS}")]) < len(numbers):
                self.violated(f"{why}, tags hold less than a table of {format} lists")
            newest = self.checkpoints()[-1:]
            if is_newest and newest and [item.number for item in found[-1:]] != [newest[0].number]:
                self.violated(f"{why}, {newest[0].number} is the newest, and a table of {format} shows another")

    def lost_pins(self) -> list[str]:
        """Return the files of tags and leases that need not hold, of checkpoints that were collected.

        Those that went since are among them. One stays behind if deleting it failed; or if a wrong clock ended the
        lease early, until its holder notices; or it came too late, and its holder is about to notice.
        """
        there = (path for path in self.written if path.startswith(_PINS))
        return sorted({*self._lost_pins, *filter(self._is_lost, there)})

    def _is_lost(self, path: str) -> bool:
        number = self._pin_numbers[path]
        return path_of(number) not in self.written and number not in (*self._leased(), *self.tags.values())

    def check_newest(self) -> None:
        """Check that whoever opens the store now finds the newest commit."""
        if self.checked == self.version or self.violation is not None:
            return
        self.checked = self.version
        try:
            found = CommitLog(self.storage).latest()
        except ArrowStateError as error:
            self.violated(f"the log cannot be read: {error}")
            return
        have = None if found is None else (found.document.number, found.document.commit_id)
        want = (self.chain[-1].number, self.chain[-1].commit_id) if self.chain else None
        if have != want:
            self.violated(f"a reader finds {have} as the newest entry, it is {want}")

    def check_acknowledged(self) -> None:
        """Check that what was acknowledged last is there: the checkpoint itself, or a newer one that is whole."""
        newest = self.newest_acknowledged()
        if not newest:
            return
        whole = [commit for commit in self.checkpoints() if commit.number >= newest and self.whole(commit)]
        if whole:
            self.check_content(whole[-1], "is the newest that is whole")
        else:
            self.violated(f"the checkpoint {newest} was acknowledged, and neither it nor a newer one is whole")

    def check_savepoint(self, folder: str) -> None:
        """Check that a savepoint can be restored."""
        try:
            storage = MemoryStorage(f"{self.storage.url}/{folder}")
            entry = CommitLog(storage).latest_checkpoint()
            if entry is None:
                self.violated(f"the savepoint {folder} has no checkpoint")
                return
            content = content_of(storage, open_store_document(storage).store_id, entry)
        except ArrowStateError as error:
            self.violated(f"the savepoint {folder} cannot be restored: {error}")
            return
        if content != self.promises[self.savepoints[folder]].content:
            self.violated(f"the savepoint {folder} holds another state than its checkpoint")

    def check_content(self, commit: Commit, why: str, *, parallelism: int | None = None) -> None:
        """Check that a checkpoint can be restored, and holds what was promised.

        All its files must be there, with the bytes that they were written with. It is restored the first time, and
        whenever a parallelism is given: the same bytes restore to the same state.
        """
        for path in sorted(commit.files):
            if path not in self.written:
                self.violated(f"the checkpoint {commit.number}, which {why}, lacks {path}")
                return
        if commit.restored and commit.found == self.version and parallelism is None:
            return
        try:
            log = CommitLog(self.storage)
            assert commit.checkpoint_id is not None, "a fence is no checkpoint"
            # Whichever has the id, it holds the same; what is restored is the one that is asked for.
            found = log.checkpoint(commit.checkpoint_id)
            entry = log.read(commit.number).document
            if (found.checkpoint_id, found.properties) != (entry.checkpoint_id, entry.properties):
                self.violated(f"for the checkpoint {commit.checkpoint_id} entry {found.number} is found")
                return
            commit.found = self.version
            if commit.restored and parallelism is None:
                return
            content = content_of(self.storage, self.store_id, entry, parallelism or 1)
            commit.restored = True
        except ArrowStateError as error:
            self.violated(f"the checkpoint {commit.number}, which {why}, cannot be restored: {error}")
            return
        if content != self.promises[commit.token or ""].content:
            self.violated(f"the checkpoint {commit.number}, which {why}, holds another state than was written")


def _paths(value: Any) -> Iterator[str]:
    """Yield every path in a document."""
    for item in value if isinstance(value, list) else value.values():
        if isinstance(item, list | dict):
            yield from _paths(item)
    if isinstance(value, dict) and isinstance(value.get("path"), str):
        yield value["path"]
