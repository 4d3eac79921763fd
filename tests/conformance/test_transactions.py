"""The adversary over a backend that merges and spills all the time, so that every verb needs room on disk."""

import pytest

from arrowstate.table.merging import MergePolicy
from suites import Deployment, TransactionSuite

TINY_RUNS = MergePolicy(fan_in=2, first_tier_rows=2, max_dead_share=0.3, segment_bytes=1)


@pytest.fixture
def deployment():
    return Deployment("merging and spilling", memory_budget_bytes=0, merge_policy=TINY_RUNS)


class TestTransactions(TransactionSuite):
    pass
