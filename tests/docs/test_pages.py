"""The pages of docs/ say what the code does: every example in them is run, page by page."""

import re

import pytest

import arrowstate.errors
from page_examples import ROOT, Block, blocks, pages, run_blocks, run_page, servers_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A new folder to work in, and lines as wide as a page of the site."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("page", pages())
def test_every_example_of_a_page_gives_what_it_shows(page, monkeypatch):
    with servers_of(page) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert run_page(page) > 0


def run(text):
    return run_blocks("a page", list(blocks(text)), {})


@pytest.mark.parametrize(
    "text",
    [
        "```python\n>>> 1 + 1\n3\n```\n",
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\n1 / 0\n```\n",
        "```console\n$ arrowstate --version\narrowstate 77\n```\n",
    ],
    ids=["dialogue", "printed", "raises", "command"],
)
def test_an_example_that_gives_something_else_fails(text):
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run(text)


def test_blocks_share_their_names_and_only_text_right_after_a_block_is_what_it_prints():
    text = "```python\na = 1\n```\n```python\nprint(a)\n```\n```text\n1\n```\nwords\n```text\n2\n```\n"

    assert run(text) == 2


def test_a_block_knows_its_line():
    assert list(blocks("# Title\n\n```python\na\n```\n")) == [Block("python", "a\n", 4, False)]


def test_a_command_without_output_is_not_run():
    assert run("```console\n$ arrowstate gc nowhere --apply\n```\n") == 0


def test_every_test_that_a_page_names_is_there():
    named = [
        (page.name, path, test)
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    ]

    gone = [name for name in named if f"def {name[2]}(" not in (ROOT / name[1]).read_text()]
    assert len(named) > 20
    assert gone == []


def test_each_line_of_the_comparison_in_sql_names_a_test():
    section = (ROOT / "docs/sql.md").read_text().partition("## Beside others")[2]

    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(lines) == 12
    assert [line for line in lines if not re.search(r"`tests/[\w/]+\.py::\w+` \|$", line)] == []


def test_every_error_has_an_entry_of_what_to_do():
    entries = re.findall(r"^### (\w+)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)

    assert sorted(entries) == sorted(set(arrowstate.errors.__all__) - {"ArrowStateError"})


def test_the_readme_is_a_page_and_no_book():
    assert len((ROOT / "README.md").read_bytes()) <= 7000
