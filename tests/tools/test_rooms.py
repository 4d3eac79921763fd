"""The rooms of the code: what is drawn is what is declared, and each of them says what it holds."""

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


def test_what_breaks_a_rule_is_named_and_so_is_an_exception_that_is_none_any_more(monkeypatch, capsys):
    monkeypatch.setattr(rooms, "FUNCTION_LINES", 0)
    monkeypatch.setattr(rooms, "BY_STRING", {"arrowstate/clock.py": "none"})

    code = rooms.main()

    said = capsys.readouterr().out
    assert code == 1
    assert "arrowstate/clock.py: now_ms has " in said
    assert "arrowstate/cli/app.py imports by a string" in said
    assert "arrowstate/clock.py imports nothing by a string" in said


def make_package(folder, **modules):
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_circle_of_imports_is_found_though_one_of_them_is_for_types_and_one_in_a_function(tmp_path):
    below = "def below():\n    from shop.orders import Order\n"
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shop.items\n"
    package = make_package(tmp_path / "shop", __init__="", orders=types, items="from shop import stock\n", stock=below)

    found = rooms.circle([package])

    assert found[0] == found[-1]
    assert set(found) == {"shop.orders", "shop.items", "shop.stock"}


def test_modules_that_import_each_other_one_way_only_are_no_circle(tmp_path):
    package = make_package(
        tmp_path / "shop", __init__="import shop.orders\n", orders="import shop.stock\n", stock="import os\n"
    )

    assert rooms.circle([package]) == []
