"""`tools/docs`: what it refuses, on pages made for it, and the site of the pages there are."""

import importlib.util
import inspect
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import docs_checks
from processes import python

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


def instances():
    import arrowstate

    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=16)
    yield backend
    yield backend.state(arrowstate.ValueStateDescriptor("value", pa.int64()))
    yield backend.state(arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean"))
    yield backend.state(arrowstate.ListStateDescriptor("list", pa.int64()))
    yield backend.state(arrowstate.MapStateDescriptor("map", pa.int64(), pa.int64()))
    yield arrowstate.OperatorStateBackend()


@pytest.mark.parametrize("instance", list(instances()), ids=lambda instance: type(instance).__name__)
def test_an_entry_lists_what_completion_shows_and_nothing_else(instance):
    kind = type(instance)
    names = {name for base in kind.__mro__ if base is not object for name in vars(base)} | set(vars(instance))

    entry, _, options = docs_checks.entry_with_filters(f"arrowstate.{kind.__name__}").partition("\n")

    assert entry == f"::: arrowstate.{kind.__name__}"
    filters = [each.removeprefix("!") for each in yaml.safe_load(options)["options"]["filters"]]
    listed = {name for name in names if not any(re.search(each, name) for each in filters)}
    shown = {name for name in dir(instance) if not name.startswith("_")}
    assert listed <= shown
    assert shown - listed <= {"freeze", "read_keys"}


@pytest.mark.parametrize(
    "name", ["StateStore", "StoreWriter", "Snapshot", "Collection", "Compaction", "PendingCheckpoint", "BatchRunner"]
)
def test_every_verb_of_what_a_store_is_used_by_says_what_it_returns(name):
    kind = docs_checks.find(f"arrowstate.{name}")
    verbs = {verb: getattr(kind, verb) for verb in dir(kind) if not re.match("_|snapshot_of|states$", verb)}

    silent = [
        verb
        for verb, function in verbs.items()
        if inspect.isfunction(function)
        and inspect.signature(function).return_annotation != "None"
        and "\nReturns\n" not in inspect.getdoc(function)
    ]

    assert silent == []


def test_what_hides_nothing_has_an_entry_without_filters_of_its_own():
    assert docs_checks.entry_with_filters("arrowstate.open_store") == "::: arrowstate.open_store"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs MkDocs: tools/docs installs it")
def test_the_site_is_built_without_a_warning(tmp_path):
    options = {"cwd": ROOT, "env": {"NO_MKDOCS_2_WARNING": "1"}}

    built = python("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site", **options)

    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").is_file()
    states = (tmp_path / "site" / "reference" / "state.html").read_text()
    assert 'id="arrowstate.ListState.add_batch"' in states
    assert 'id="arrowstate.ListState.adopt"' not in states
    shutil.rmtree(tmp_path / "site")


def test_an_option_that_there_is_not_is_refused():
    ran = subprocess.run([ROOT / "tools" / "docs", "--chekc"], capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert "usage: tools/docs [--check]" in ran.stderr
