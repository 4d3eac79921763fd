"""A backend whose key is a user."""

import pytest

import arrowstate
from stores import USER, backend_of


@pytest.fixture
def backend() -> arrowstate.KeyedStateBackend:
    return backend_of(USER)
