"""The streams of snapshots, on every storage."""

from arrowstate.testing import CheckpointStreamSuite


class TestCheckpointStreams(CheckpointStreamSuite):
    pass
