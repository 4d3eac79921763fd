"""Manifests read again and again: what they say of files that were there before is decoded once.

A manifest lists the record batches of every file of a subtask, and the next one lists most of them again, text for
text. So the text of such a list is looked up before it is decoded. What is kept was read strictly, and only where the
text is the one that `encode` writes: any other is decoded with its manifest each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from arrowstate_formats.document_base import FORMAT_VERSION, check_key_groups
from arrowstate_formats.document_text import decode, is_laid_out, pack, unpack
from arrowstate_formats.kept_texts import KeptTexts
from arrowstate_formats.run_documents import BatchDocument, BatchList, ManifestDocument, RunDocument, StateRunsDocument

_KEPT_RUNS = 1 << 9


def _sketch(kind: type[msgspec.Struct], **types: Any) -> Any:
    """Return a struct with the fields of another, some of them of other types, that checks nothing of its own."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        default: Any = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        named = (field.name, types.get(field.name, field.type))
        fields.append(named if default is msgspec.NODEFAULT else (*named, default))
    return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


_Run = _sketch(RunDocument, batches=msgspec.Raw)
_State = _sketch(StateRunsDocument, runs=list.__class_getitem__(_Run))
_Manifest = _sketch(ManifestDocument, states=list.__class_getitem__(_State))
_Outline = _sketch(
    ManifestDocument,
    states=list.__class_getitem__(_sketch(StateRunsDocument, runs=list.__class_getitem__(msgspec.Raw))),
)
_Id: Any = msgspec.defstruct("Id", [("id", str)])
_ID_FIRST = b'{"id":"'
_FIELDS = [field.name for field in msgspec.structs.fields(RunDocument) if field.name != "batches"]


_KEPT: KeptTexts[BatchList] = KeptTexts(64 << 20)


def _batches(text: bytes) -> BatchList:
    found = _KEPT.get(text)
    if found is None:
        found = BatchList(unpack(text, list[BatchDocument]))
        # Kept is what is in order; `ends` remembers that it is.
        _ = found.ends
        if msgspec.json.format(text, indent=-1) != pack(found):
            raise ValueError("a text that this package does not write")
        _KEPT.put(text, found)
    return found


def decode_manifest(data: bytes, *, path: str = "") -> ManifestDocument:
    """Return the manifest that `decode` would return; what it lists as manifests before did is looked up.

    Parameters and errors are those of `decode`.
    """
    try:
        sketch = unpack(data, _Manifest)
        plain = sketch.format_version == FORMAT_VERSION and not sketch.features and not sketch.extensions
        if plain and len(data) <= (ManifestDocument.max_bytes or 0) and is_laid_out(data, sketch):
            states = [
                StateRunsDocument(name=state.name, runs=[_run(run) for run in state.runs]) for state in sketch.states
            ]
            manifest = ManifestDocument(operator=sketch.operator, key_groups=sketch.key_groups, states=states)
            manifest.check()
            return manifest
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        # What is wrong with it is told below.
        pass
    return decode(data, ManifestDocument, path=path)


class RunsOfState:
    """Reads the runs of one state from manifests that follow each other; those with the text of before are looked up.

    What it returns is for reading one state; a manifest is told to be whole by its checksum.
    """

    def __init__(self, name: str, is_wanted: Callable[[str], bool] = lambda _: True) -> None:
        self._name = name
        self._is_wanted = is_wanted
        self._runs: dict[bytes, RunDocument] = {}

    def decode(self, data: bytes, *, path: str = "") -> ManifestDocument:
        """Return a manifest with this state alone, if it has it; errors are those of `decode` for what is looked at."""
        try:
            sketch = unpack(data, _Outline)
            if sketch.format_version == FORMAT_VERSION and not sketch.features and not sketch.extensions:
                check_key_groups(sketch.key_groups)
                own = [state for state in sketch.states if state.name == self._name]
                states = [StateRunsDocument(name=state.name, runs=self._wanted(state.runs)) for state in own]
                return ManifestDocument(operator=sketch.operator, key_groups=sketch.key_groups, states=states)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            # What is wrong with it is told below.
            pass
        whole = decode_manifest(data, path=path)
        return msgspec.structs.replace(whole, states=[state for state in whole.states if state.name == self._name])

    def _wanted(self, texts: Sequence[msgspec.Raw]) -> list[RunDocument]:
        return [self._run(text) for text in map(bytes, texts) if self._is_wanted(_id_of(text))]

    def _run(self, text: bytes) -> RunDocument:
        found = self._runs.get(text)
        if found is None:
            if len(self._runs) >= _KEPT_RUNS:
                self._runs.clear()
            found = _run(unpack(text, _Run))
            found.check()
            self._runs[text] = found
        return found


def _id_of(text: bytes) -> str:
    """Return the id of a run, which this package writes first."""
    end = text.find(b'"', len(_ID_FIRST))
    if text.startswith(_ID_FIRST) and b"\\" not in text[:end]:
        return text[len(_ID_FIRST) : end].decode()
    found: str = unpack(text, _Id).id
    return found


def _run(sketch: Any) -> RunDocument:
    given = {name: getattr(sketch, name) for name in _FIELDS}
    return RunDocument(batches=_batches(bytes(sketch.batches)), **given)
