"""`tools/docs`: what it refuses, on pages made for it, and the site of the pages there are."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import docs_checks

ROOT = Path(__file__).resolve().parents[2]


def test_the_documentation_has_no_dead_link_no_lost_page_and_every_public_name(capsys):
    assert docs_checks.main() == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gone](gone.md)", "gone.md is not there"),
        ("[gone](index.md#gone)", "index.md#gone has no such heading"),
        ("![far](https://example.org/far.svg)", "is of another site"),
        ("[out](../../../etc/passwd)", "is not there"),
    ],
)
def test_a_dead_link_is_found(text, said):
    pages = {"docs/index.md": "# Here\n", "docs/page.md": text}

    (found,) = docs_checks.links(pages)

    assert said in found


@pytest.mark.parametrize(
    "text", ["[here](#a-b-and-c)", "[c](index.md#here)", "`[no](link.md)`", "```\n[no](link)\n```"]
)
def test_a_link_that_leads_somewhere_is_none(text):
    pages = {"docs/index.md": "# Here\n", "docs/page.md": f"## `a_b`, and c\n\n## a b and c\n\n{text}\n"}

    assert list(docs_checks.links(pages)) == []


def test_a_page_that_is_in_no_menu_is_found():
    found = list(docs_checks.menu({"docs/lost.md": ""}))

    assert "mkdocs.yml: docs/lost.md is not in the menu" in found
    assert "mkdocs.yml: there is no page docs/index.md" in found


def test_a_public_name_without_docstring_or_entry_is_found(monkeypatch):
    import arrowstate

    def undescribed():
        pass

    monkeypatch.setattr(arrowstate, "undescribed", undescribed, raising=False)
    monkeypatch.setattr(arrowstate, "__all__", ["undescribed"])

    found = [each for each in docs_checks.names({}) if each.startswith("arrowstate.undescribed")]

    assert found == [
        "arrowstate.undescribed has 0 entries in docs/reference, not one",
        "arrowstate.undescribed has no docstring",
    ]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs MkDocs: tools/docs installs it")
def test_the_site_is_built_without_a_warning(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").is_file()
    shutil.rmtree(tmp_path / "site")


def test_an_option_that_there_is_not_is_refused():
    ran = subprocess.run([ROOT / "tools" / "docs", "--chekc"], capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert "usage: tools/docs [--check]" in ran.stderr
