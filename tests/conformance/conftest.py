"""Every deployment of arrowstate's own; the short form leaves out what is most alike."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from long_form import LONG, TURN

pytest.register_assert_rewrite("arrowstate.testing", "suites")

from suites import DEPLOYMENTS  # noqa: E402

FOLDER = Path(__file__).parent
SHARED = ("deployment", "values")


@pytest.fixture(params=DEPLOYMENTS, ids=str)
def deployment(request):
    return request.param


def pytest_collection_modifyitems(config, items):
    """Keep of each test every deployment, every supply of keys and every case of its own, but not their whole product.

    A test without cases of its own runs on every deployment, each with one of the supplies of keys. A case of a test
    with several runs on every other deployment, the next case on those between them. Commits take turns, so that four
    in a row have the whole product.
    """
    if LONG:
        return
    left_out = set()
    ours = [item for item in items if item.path.is_relative_to(FOLDER) and hasattr(item, "callspec")]
    for _, cases in groupby(ours, key=lambda item: (item.path, item.cls, item.originalname)):
        cases = list(cases)
        own = {_own_case(item): None for item in cases}
        order = {case: number for number, case in enumerate(own)}
        for item in cases:
            deployment, values = (item.callspec.indices.get(name) for name in SHARED)
            place = (deployment or 0) + order[_own_case(item)] + TURN
            other_half = deployment is not None and len(own) > 1 and place % 2
            if other_half or (values is not None and (place // 2 + values) % 2):
                left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _own_case(item):
    return tuple(sorted((name, index) for name, index in item.callspec.indices.items() if name not in SHARED))
