"""Write checksums.json: XXH3 with 128 bits of bytes of every length class, and documents with a checksum of their own.

Run from the root of the repository, with the package xxhash, which binds the reference implementation:

    python formats/vectors/make_checksums.py
"""

from __future__ import annotations

import json
from pathlib import Path

import xxhash

LENGTHS = [0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 5000]
"""XXH3 has a way of its own for lengths up to 3, 8, 16, 128 and 240, and for longer ones by stripes and blocks."""

TEXTS = [
    '{"format_version": 1, "document_xxh3_128": "<checksum>", "text": "x"}',
    '{\n "format_version": 1,\n\t"document_xxh3_128"\r\n:\n"<checksum>",\n"holder": "ä \\"document_xxh3_128\\": "\n}\n',
    '{"document_xxh3_128":"<checksum>","holder":"\\"document_xxh3_128\\":\\"00000000000000000000000000000000\\""}',
]


def main() -> None:
    """Write the file."""
    cases = []
    for length in LENGTHS:
        data = bytes(number * 7 % 251 for number in range(length))
        cases.append({"length": length, "xxh3_128": xxhash.xxh3_128_hexdigest(data)})
    documents = []
    for text in TEXTS:
        digest = xxhash.xxh3_128_hexdigest(text.replace("<checksum>", "0" * 32).encode())
        documents.append({"text": text.replace("<checksum>", digest), "document_xxh3_128": digest})
    found = {"bytes": "byte i is 7 i mod 251", "cases": cases, "documents": documents}
    Path(__file__).with_name("checksums.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
