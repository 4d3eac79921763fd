"""The examples in the docstrings and in the texts of the format run, and its links lead somewhere."""

import doctest
import importlib
import re
from pathlib import Path

import pyarrow as pa
import pytest

from arrowstate_formats.documents import (
    BoundaryDocument,
    Document,
    JobDocument,
    LeaseDocument,
    LogEntryDocument,
    ManifestDocument,
    OperatorStateDocument,
    StoreDocument,
    TagDocument,
    decode,
    decode_inline,
    encode,
)
from arrowstate_formats.run_files import checksum

FORMATS = Path(__file__).parents[2] / "formats"
TEXTS = sorted(FORMATS.rglob("*.md"))
MODULES = sorted(path.stem for path in (FORMATS / "arrowstate_formats").glob("*.py") if ">>> " in path.read_text())


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(FORMATS))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(f"arrowstate_formats.{name}")

    results = doctest.testmod(module)

    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("path", [path for path in TEXTS if blocks(path, "python")], ids=name_of)
def test_the_python_of_a_text_runs(path: Path) -> None:
    source = "\n".join(blocks(path, "python"))
    test = doctest.DocTestParser().get_doctest(source, {}, path.name, str(path), 0)

    results = doctest.DocTestRunner().run(test)

    assert results.failed == 0
    assert results.attempted == source.count(">>> ") > 0


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("spec/manifests-and-log.md", [StoreDocument, LogEntryDocument, ManifestDocument]),
        ("spec/collection.md", [TagDocument, LeaseDocument, BoundaryDocument]),
        ("spec/jobs.md", [JobDocument]),
    ],
)
def test_the_documents_of_the_specification_are_documents_as_they_are_written(
    path: str, kinds: list[type[Document]]
) -> None:
    texts = blocks(FORMATS / path, "json")

    found = [encode(decode(text.encode(), kind)).decode() for text, kind in zip(texts, kinds, strict=True)]

    assert found == texts


def test_the_operator_state_of_the_specification_is_a_document_that_can_be_read() -> None:
    (text,) = blocks(FORMATS / "spec/operator-state.md", "json")

    document = decode(text.encode(), OperatorStateDocument)

    assert encode(document).decode() == text
    data = decode_inline(document.parts[0].inline or "")
    assert checksum(data) == document.parts[0].xxh3_128
    assert pa.ipc.open_file(data).read_all().to_pydict() == {"offsets": [17, 4]}


@pytest.mark.parametrize("path", [path for path in TEXTS if "](" in path.read_text()], ids=name_of)
def test_links_lead_to_a_file_and_a_heading(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text()):
        name, _, heading = target.partition("#")
        linked = (path.parent / name).resolve() if name else path

        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in headings]
            assert heading in anchors, target
