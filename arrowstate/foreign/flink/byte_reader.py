"""Java's data output, read with every length checked against what is left.

Numbers are big-endian. An error names the file, the offset and the reason; a reader never allocates more than the
bytes that it was given can fill.
"""

from __future__ import annotations

import struct

from arrowstate.errors import CorruptDataError

_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


def modified_utf8(data: bytes) -> str:
    """Return a text of Java's `writeUTF`: NUL is two bytes there, and four bytes of UTF-8 are a pair of surrogates.

    Examples
    --------
    >>> modified_utf8(b"a" + bytes([0xC0, 0x80]))
    'a\\x00'
    """
    if data.isascii():
        return data.decode("ascii")
    units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


class ByteReader:
    """A cursor over bytes."""

    __slots__ = ("data", "end", "name", "position")

    def __init__(self, data: bytes | memoryview, name: str, position: int = 0, end: int | None = None) -> None:
        self.data, self.name, self.position = data, name, position
        self.end = len(data) if end is None else end
        if not 0 <= position <= self.end <= len(data):
            raise self.wrong(f"bytes {position} to {self.end} of {len(data)}")

    def wrong(self, reason: str) -> CorruptDataError:
        """Return the error that says what is wrong with the bytes at this position."""
        return CorruptDataError(self.name, f"at byte {self.position}: {reason}")

    @property
    def left(self) -> int:
        """Bytes between here and the end."""
        return self.end - self.position

    def take(self, length: int) -> bytes:
        """Return the next bytes."""
        if length < 0 or length > self.left:
            raise self.wrong(f"a length of {length}, and {self.left} bytes are left")
        start, self.position = self.position, self.position + length
        return bytes(self.data[start : self.position])

    def skip(self, length: int) -> None:
        """Go over bytes without reading them."""
        if length < 0 or length > self.left:
            raise self.wrong(f"a length of {length}, and {self.left} bytes are left")
        self.position += length

    def byte(self) -> int:
        """Return a byte of 0 to 255."""
        return self.take(1)[0]

    def boolean(self) -> bool:
        """Return a flag; another byte than 0 and 1 is none."""
        value = self.byte()
        if value > 1:
            self.position -= 1
            raise self.wrong(f"the flag {value} is neither 0 nor 1")
        return value == 1

    def short(self) -> int:
        """Return a signed number of two bytes."""
        number: int = _SHORT.unpack(self.take(2))[0]
        return number

    def integer(self) -> int:
        """Return a signed number of four bytes."""
        number: int = _INT.unpack(self.take(4))[0]
        return number

    def long(self) -> int:
        """Return a signed number of eight bytes."""
        number: int = _LONG.unpack(self.take(8))[0]
        return number

    def count(self, least_bytes: int = 1) -> int:
        """Return a number of things, each of which has at least so many bytes after it."""
        number = self.integer()
        if number < 0 or number * least_bytes > self.left:
            self.position -= 4
            raise self.wrong(f"a number of {number}, and {self.left} bytes are left")
        return number

    def counted_bytes(self) -> bytes:
        """Return bytes after their length."""
        return self.take(self.count())

    def utf(self) -> str:
        """Return a text of `writeUTF`."""
        start = self.position
        data = self.take(self.short() & 0xFFFF)
        try:
            return modified_utf8(data)
        except ValueError as error:
            self.position = start
            raise self.wrong("no text of modified UTF-8") from error

    def part(self, length: int) -> ByteReader:
        """Return a reader of the next bytes, and go over them."""
        start = self.position
        self.skip(length)
        return ByteReader(self.data, self.name, start, self.position)
