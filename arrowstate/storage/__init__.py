"""Where a store is kept: named immutable files, created only if absent.

A `Storage` is the whole contract between a store and the place it lives in. It has two
implementations, a folder of a local file system and the memory of this process; `open_storage`
chooses by path or URL.
"""

from arrowstate.storage.base import Outcome, Storage
from arrowstate.storage.local import LocalStorage
from arrowstate.storage.memory import MemoryStorage, clear_memory_storage
from arrowstate.storage.registry import SUPPORTED, open_storage

__all__ = ["LocalStorage", "MemoryStorage", "Outcome", "SUPPORTED", "Storage", "clear_memory_storage", "open_storage"]
