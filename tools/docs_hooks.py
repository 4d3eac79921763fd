"""What MkDocs does beside its own: pages from outside of docs/, and entries of the reference by what they are."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mkdocs.structure.files import File, Files

from docs_checks import ENTRY, GUESTS, ROOT, entry_with_filters

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand elsewhere in the repository."""
    for path, place in GUESTS.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links of the site, and have entries list what users call.

    A file that is not in the site has its name there, and no link.
    """
    del config
    source = next((path for path, place in GUESTS.items() if place == page.file.src_uri), f"docs/{page.file.src_uri}")

    def of_the_site(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        place = GUESTS.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            return match[1] if (ROOT / path).exists() else match[0]
        there = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{match[1]}]({there}{match[3] or ''})"

    return ENTRY.sub(lambda match: entry_with_filters(match[1]), _LINK.sub(of_the_site, markdown))
