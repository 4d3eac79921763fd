"""Every deployment of arrowstate's own."""

import pytest

pytest.register_assert_rewrite("arrowstate.testing", "suites")

from suites import DEPLOYMENTS  # noqa: E402


@pytest.fixture(params=DEPLOYMENTS, ids=str)
def deployment(request):
    return request.param
