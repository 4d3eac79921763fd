"""What comes with the page from others is what they published, with its licence."""

import hashlib
from pathlib import Path

from arrowstate import ui

FOLDER = Path(ui.__file__).parent / "static" / "vendor"


def test_every_file_of_others_has_the_hash_that_was_recorded():
    recorded = dict(reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.iterdir()
        if path.name != "SHA256SUMS"
    }

    assert found == recorded


def test_every_library_has_its_licence():
    libraries = {path.name.partition("-")[0] for path in FOLDER.iterdir() if path.suffix in (".js", ".css")}

    assert libraries == {path.name.removesuffix(".LICENSE") for path in FOLDER.glob("*.LICENSE")}


def test_pages_load_what_comes_with_them_alone():
    templates = "".join(path.read_text() for path in (FOLDER.parent.parent / "templates").iterdir())

    assert "http://" not in templates
    assert "https://" not in templates
    for name in ("htmx-", "uPlot-"):
        assert templates.count(f"/static/vendor/{name}") == len(list(FOLDER.glob(f"{name}*")))
