"""Where a store is kept: named immutable files, created only if absent.

A `Storage` is the whole contract between a store and the place it lives in. It is implemented by a
folder of a local file system, a bucket of an object storage, and the memory of this process;
`open_storage` chooses by path or URL.
"""

from arrowstate.storage.base import Outcome, Storage
from arrowstate.storage.cache import FileCache
from arrowstate.storage.local import LocalStorage
from arrowstate.storage.memory import MemoryStorage, clear_memory_storage
from arrowstate.storage.objects import ObjectStorage
from arrowstate.storage.parallel import in_parallel
from arrowstate.storage.registry import SUPPORTED, open_storage, options_beside
from arrowstate.storage.retries import RetryBudget, RetryClock

__all__ = [
    "FileCache",
    "LocalStorage",
    "MemoryStorage",
    "ObjectStorage",
    "Outcome",
    "RetryBudget",
    "RetryClock",
    "SUPPORTED",
    "Storage",
    "clear_memory_storage",
    "in_parallel",
    "open_storage",
    "options_beside",
]
