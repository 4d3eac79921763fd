"""What a program of the shredder is made of: the codes of its operations and of what may be wrong.

An operation is eight numbers: its code, six arguments and the slot that it fills, -1 for none. Registers 0 to 3 belong
to the machine, the others to the program.
"""

from __future__ import annotations

from typing import Final

WIDTH: Final = 8
"""Numbers of an operation."""

OVERFLOW: Final = 0
POSITION: Final = 1
END: Final = 2
FAILED: Final = 3
FREE: Final = 4
"""The first register of a program."""

SHORT: Final = 1
"""More bytes are needed than there are."""

DAMAGED: Final = 2
"""The bytes are not what they must be."""

UNKNOWN: Final = 3
"""The bytes may be right, and nothing says what they mean."""

HALT: Final = 0
FIXED: Final = 1
SKIP: Final = 2
STRING: Final = 3
BYTES: Final = 4
BIGINT: Final = 5
REPEAT: Final = 6
NEXT: Final = 7
OPTIONAL: Final = 8
MASK: Final = 9
BIT: Final = 10
POJO: Final = 11
CASE: Final = 12
FAIL: Final = 13
RANGE: Final = 14
TAG: Final = 15
JUMP: Final = 16
JOINED: Final = 17
JOINED_NEXT: Final = 18
MARK: Final = 19
SUFFIX: Final = 20
BEGIN_BLOCKS: Final = 21
BLOCK: Final = 22
REST: Final = 23
ROOT: Final = 24
ROW: Final = 25
SLOT_FIXED: Final = 26
SLOT_BYTES: Final = 27
SLOT_TIME: Final = 28
ENTER: Final = 29
ARRAY: Final = 30
ARRAY_NEXT: Final = 31
MAP_PARTS: Final = 32
