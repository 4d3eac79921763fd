"""The file `_metadata`: what is damaged, too new or too old is named."""

import struct

import pytest

from arrowstate.errors import CorruptDataError, FormatVersionError
from arrowstate.foreign.flink.handles import ChannelHandle, InlineHandle
from arrowstate.foreign.flink.java_objects import JavaObject
from arrowstate.foreign.flink.metadata import _plain, read_metadata

MAGIC = struct.pack(">I", 0x4960672D)


def test_another_file_is_refused_by_its_first_bytes() -> None:
    with pytest.raises(CorruptDataError, match="at byte 0: this is no _metadata of Flink"):
        read_metadata(b"PAR1" + bytes(20))


@pytest.mark.parametrize(("version", "error"), [(1, CorruptDataError), (8, FormatVersionError)])
def test_versions_that_are_not_read_are_named(version: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"version {version}"):
        read_metadata(MAGIC + struct.pack(">iqii", version, 1, 0, 0))


def _operator(version: int, subtask: bytes) -> bytes:
    names = struct.pack(">H4sH3s", 4, b"name", 3, b"uid") if version >= 5 else b""
    between = bytes(4) if version == 2 else b"\x01" + struct.pack(">H1sI3s", 1, b"c", 3, b"abc")
    return names + bytes(range(16)) + struct.pack(">ii", 2, 128) + between + struct.pack(">i", 1) + subtask


def _file(version: int, subtask: bytes) -> bytes:
    after = b"\xac\xed\x00\x05p" if version >= 4 else b""
    return MAGIC + struct.pack(">iqii", version, 41, 0, 1) + _operator(version, subtask) + after


_EMPTY = struct.pack(">iibb", 0, 0, 0, 0)


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_says_which_operator_and_subtask(version: int) -> None:
    unused = bytes(12) if version == 2 else b""
    channels = struct.pack(">ii", 0, 0) if version >= 3 else b""
    origin = b"\x01" + bytes(8) if version >= 7 else b""

    found = read_metadata(_file(version, struct.pack(">i", 1) + unused + _EMPTY + channels + origin))

    (operator,) = found.operators
    assert (found.checkpoint_id, operator.id, operator.max_parallelism) == (41, bytes(range(16)).hex(), 128)
    assert operator.label == ("uid" if version >= 5 else operator.id)
    assert [(each.index, each.finished) for each in operator.subtasks] == [(1, False)]
    assert (operator.coordinator is not None) == (version >= 3)
    if isinstance(operator.coordinator, InlineHandle):
        assert operator.coordinator.size == 3


def test_properties_at_the_end_of_a_long_chain_of_objects_are_left_out() -> None:
    found = JavaObject("com.acme.Last", {"n": 1000})
    for number in reversed(range(1000)):
        found = JavaObject("com.acme.Link", {"n": number, "next" * 25: found})

    properties = _plain(found)

    assert list(properties.values()) == list(range(10))
    assert max(map(len, properties)) < 1000


def test_a_finished_subtask_has_nothing_after_its_index() -> None:
    found = read_metadata(_file(6, struct.pack(">i", -4)))

    assert [(each.index, each.finished) for each in found.operators[0].subtasks] == [(3, True)]


@pytest.mark.parametrize("version", [5, 6])
def test_records_under_way_are_named(version: int) -> None:
    plain = struct.pack(">iiiiqq", 0, 1, 2, 1, 77, 500) + b"\0"
    merged = b"\3" + struct.pack(">iq", 0, 900) + b"\0" + struct.pack(">i", 0)
    inputs = [plain] if version == 5 else [b"\1" + plain, merged]
    channels = struct.pack(">i", len(inputs)) + b"".join(inputs) + struct.pack(">i", 0)

    found = read_metadata(_file(version, struct.pack(">i", 0) + _EMPTY + channels))

    expected = [ChannelHandle("input", 0, 500), ChannelHandle("input", 0, 900)][: len(inputs)]
    assert list(found.operators[0].subtasks[0].channels) == expected


@pytest.mark.parametrize("cut", [10, 30, 50, 60])
def test_a_truncated_file_is_refused_with_the_offset(cut: int) -> None:
    data = _file(6, struct.pack(">i", 0) + _EMPTY + bytes(8))

    with pytest.raises(CorruptDataError, match=r"_metadata is damaged: at byte \d+: "):
        read_metadata(data[:cut])


def test_a_number_of_two_thousand_millions_takes_no_memory() -> None:
    with pytest.raises(CorruptDataError, match="a number of 2147483647, and 4 bytes are left"):
        read_metadata(MAGIC + struct.pack(">iqii", 6, 1, 0, 2**31 - 1))
