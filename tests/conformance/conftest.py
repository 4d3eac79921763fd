import pytest

pytest.register_assert_rewrite("arrowstate.testing")

from arrowstate.testing import DEPLOYMENTS  # noqa: E402


@pytest.fixture(params=DEPLOYMENTS, ids=str)
def deployment(request):
    return request.param
