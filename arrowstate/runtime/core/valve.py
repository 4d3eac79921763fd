"""The watermark of a task with several input channels, and of a source with several splits.

The rules are those of Flink's `StatusWatermarkValve`: the watermark is the lowest of the channels that count, and only
ever grows. A channel that turns idle no longer counts. One that turns active again counts once it has caught up with
the watermark that was given out. Other than there, event time ends only when all channels have ended: beside one that
is idle those that have ended do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_WATERMARK = (1 << 63) - 1
"""The watermark of a channel whose input has ended."""


@dataclass(slots=True)
class _Channel:
    watermark: int | None = None
    is_idle: bool = False
    counts: bool = True
    """Whether it has caught up, and is not idle."""


class WatermarkValve:
    """Makes one watermark of those of several channels."""

    def __init__(self, channels: int = 0, *, watermark: int | None = None, waits_for_late: bool = False) -> None:
        self.watermark = watermark
        "The one that was given out last; None before the first."
        # Splits that are found later hold back the others, channels that were idle do not.
        self._waits_for_late = waits_for_late
        self._channels: dict[int | str, _Channel] = {}
        for number in range(channels):
            # Restored: nobody is known to be further, and nobody to be behind.
            self.add(number, watermark=watermark)

    def __contains__(self, channel: int | str) -> bool:
        """Whether a channel is one of those that it knows."""
        return channel in self._channels

    @property
    def is_idle(self) -> bool:
        """Whether all channels are that have not ended, of which there is one at least."""
        going_on = [channel for channel in self._channels.values() if channel.watermark != MAX_WATERMARK]
        return bool(going_on) and all(channel.is_idle for channel in going_on)

    def shown(self, channel: int | str) -> int | None:
        """Return the watermark of one channel, None before its first."""
        return self._channels[channel].watermark

    def add(self, channel: int | str, *, watermark: int | None = None) -> None:
        """Take in one more channel, with the watermark that it has had."""
        self._channels[channel] = _Channel(watermark)
        self._catch_up(self._channels[channel])

    def begin(self, channels: Mapping[int | str, tuple[int | None, bool]]) -> None:
        """Take other channels in the place of all, each with its watermark, and whether it is idle.

        One without a watermark is where the valve is: nobody is known to be further, and nobody to be behind.
        """
        self._channels.clear()
        for channel, (watermark, is_idle) in channels.items():
            self.add(channel, watermark=self.watermark if watermark is None else watermark)
            if is_idle:
                self._channels[channel].is_idle, self._channels[channel].counts = True, False

    def idle(self, channel: int | str) -> bool:
        """Whether one channel is idle."""
        return self._channels[channel].is_idle

    def look(self) -> int | None:
        """Return the watermark if it grew by channels that were added."""
        return self._grown()

    def remove(self, channel: int | str) -> int | None:
        """Let a channel go; return the watermark if it grew by that."""
        self._channels.pop(channel, None)
        return self._grown()

    def advance(self, channel: int | str, watermark: int) -> int | None:
        """Take note of a watermark of a channel; return that of all if it grew. A lower one is passed over."""
        known = self._channels[channel]
        if known.watermark is not None and watermark <= known.watermark:
            return None
        known.watermark = watermark
        self._catch_up(known)
        return self._highest() if watermark == MAX_WATERMARK and self.is_idle else self._grown()

    def set_idle(self, channel: int | str, is_idle: bool) -> int | None:
        """Take note that a channel is idle, or no longer; return the watermark of all if it grew by that."""
        known = self._channels[channel]
        if known.is_idle == is_idle:
            return None
        known.is_idle = is_idle
        if not is_idle:
            self._catch_up(known)
            return self._grown()
        known.counts = False
        return self._highest() if self.is_idle else self._grown()

    def _catch_up(self, channel: _Channel) -> None:
        behind = (
            not self._waits_for_late
            and self.watermark is not None
            and (channel.watermark is None or channel.watermark < self.watermark)
        )
        channel.counts = not channel.is_idle and not behind

    def _grown(self) -> int | None:
        going_on = [channel for channel in self._channels.values() if channel.watermark != MAX_WATERMARK]
        counting = [channel.watermark for channel in going_on or self._channels.values() if channel.counts]
        # One that has none yet holds back all, and none that counts means that nothing is known.
        if not counting or any(watermark is None for watermark in counting):
            return None
        return self._raised(min(watermark for watermark in counting if watermark is not None))

    def _highest(self) -> int | None:
        """Return the watermark if it grew since nobody is waited for: what has come is complete up to the highest."""
        shown = [item.watermark for item in self._channels.values() if item.watermark not in (None, MAX_WATERMARK)]
        return self._raised(max(shown, default=None))

    def _raised(self, watermark: int | None) -> int | None:
        if watermark is None or (self.watermark is not None and watermark <= self.watermark):
            return None
        self.watermark = watermark
        return watermark
