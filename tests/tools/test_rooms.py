"""The rooms of the code: what is drawn is what is declared, and each of them says what it holds."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import rooms

ROOT = Path(__file__).parents[2]


def test_the_picture_of_the_rooms_is_what_the_gate_checks():
    page = (ROOT / "docs/design/architecture.md").read_text()
    picture = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]

    drawn = [line.split(" | ") for line in picture.splitlines()]

    assert drawn == rooms.layers()
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert described == {room for row in drawn for room in row} - {"__main__"}


def test_every_room_says_what_it_holds():
    folders = {path.parent for path in (ROOT / "arrowstate").rglob("*.py")} - {ROOT / "arrowstate"}
    names = [".".join(folder.relative_to(ROOT).parts) for folder in folders]

    silent = [name for name in names if not (importlib.import_module(name).__doc__ or "").strip()]

    assert silent == []


def test_what_is_too_large_is_named(monkeypatch, capsys):
    monkeypatch.setattr(rooms, "LARGER", {})

    code = rooms.main()

    assert code == 1
    assert "arrowstate/store/store.py has" in capsys.readouterr().out


def test_what_became_small_is_no_exception_any_more(monkeypatch, capsys):
    monkeypatch.setattr(rooms, "LARGER", {**rooms.LARGER, "arrowstate/clock.py": "it was large"})

    code = rooms.main()

    assert code == 1
    assert "arrowstate/clock.py is small enough" in capsys.readouterr().out
