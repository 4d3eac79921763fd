"""Finding an entry by the id of its checkpoint, with few reads.

Ids rise with the numbers of the entries, but not with the same steps: fences take numbers and no ids, aborted
checkpoints take ids and no numbers. A fence tells the newest id before it, so every entry says on which side of it an
id is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from arrowstate.log.entries import CommittedEntry, newest_id


def last_up_to(
    numbers: Sequence[int], checkpoint_id: int, read: Callable[[int], CommittedEntry | None]
) -> CommittedEntry | None:
    """Return the last entry up to which no checkpoint is above an id; None if there is none.

    Begins at the newest one. Each second step goes as far as the ids differ, which is right where nothing lies between;
    the others halve what is left, so that it takes at most about 2 log2 of the entries.
    """
    left = list(numbers)
    low, high, place = 0, len(left), len(left) - 1
    found = None
    jumps = True
    while low < high:
        entry = read(left[place])
        if entry is None:
            del left[place]
            high -= 1
            place = (low + high) // 2
            continue
        distance = checkpoint_id - newest_id(entry)
        if distance >= 0:
            found, low = entry, place + 1
        else:
            high = place
        place = min(max(place + distance, low), high - 1) if jumps else (low + high) // 2
        jumps = not jumps
    return found
