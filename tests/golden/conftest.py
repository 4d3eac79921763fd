"""What the tests of golden stores share."""

from collections.abc import Iterator

import pytest

from arrowstate.query.kept_reads import forget_checkpoints


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Keep nothing of golden stores, which share ids and, where pytest uses a folder again, a place."""
    yield
    forget_checkpoints()
