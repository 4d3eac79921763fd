"""The streams of snapshots, on every storage."""

from __future__ import annotations

from arrowstate.testing import CheckpointStreamSuite


class TestCheckpointStreams(CheckpointStreamSuite):
    pass
