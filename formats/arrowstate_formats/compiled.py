"""How the package has its kernels compiled: for one signature each, called without the GIL.

A wheel for a platform brings all of them in a library that was compiled when it was built (`_kernels`, made by
`tools/kernel_library`); nothing is compiled then, and numba is not needed. Elsewhere, as in a checkout, numba compiles
a kernel when it is first called. As a kernel is declared with the types of its arguments, that happens once, whatever
the flags of the arrays that it is called with, and `warm` can do it before. What numba compiled is kept on disk
(`kernel_cache`).

Compiling is most of what a first use costs, and its price is what numba has to type and not the work of a kernel. So
kernels allocate nothing, assign no slices and call few functions: their callers make the arrays. Data that may lie
anywhere in a mapped file, and values of any width, are taken by their address.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from arrowstate_formats import numba_internals, system
from arrowstate_formats.errors import MissingDependencyError
from arrowstate_formats.kernel_cache import KernelCache

try:
    import arrowstate_formats._kernels as _library  # type: ignore[import-not-found]
except ImportError:
    # A checkout, or a wheel for all platforms.
    _library = None

KERNELS: list[Kernel] = []
"""All kernels of the modules that were imported, in the order of their declaration."""

_4, _8 = np.uint64(4), np.uint64(8)

# Nobody calls a kernel from C.
_OPTIONS: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True}
_NOT_FROM_PYTHON: dict[str, Any] = {"no_cpython_wrapper": True}

# numba's compiler has a lock of its own; this one keeps two threads from building a kernel twice.
_lock = system.forks_wait_for(threading.RLock())

_logger = logging.getLogger("arrowstate")


class _Part:
    """What a kernel is made of: its function is known at import, numba's object of it is made when it is needed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._built: Any = None

    def built(self) -> Any:
        if self._built is None:
            self._built = self._build()
        return self._built

    def __call__(self, *_arguments: Any) -> Any:
        raise TypeError(f"{self.function.__name__} can be called by kernels only")

    def _build(self) -> Any:
        raise NotImplementedError  # Abstract: subroutines, instructions and kernels are built in their own ways.

    def _linked(self) -> FunctionType:
        """Return the function with numba's objects in the place of the parts that it names."""
        scope = {
            name: value.built() if isinstance(value, _Part) else value
            for name, value in self.function.__globals__.items()
            if name in self.function.__code__.co_names or name.startswith("__")
        }
        linked = FunctionType(self.function.__code__, scope, self.function.__name__)
        linked.__qualname__, linked.__module__ = self.function.__qualname__, self.function.__module__
        return linked

    def fingerprint(self) -> str:
        """Return what the code is made of: that of the parts it names and the constants it reads too."""
        code, scope = self.function.__code__, self.function.__globals__
        named = [(name, scope[name]) for name in code.co_names if name in scope]
        # The path of a module is nothing that its functions are made of.
        named = [(name, value) for name, value in named if not isinstance(value, ModuleType)]
        values = [(name, value.fingerprint() if isinstance(value, _Part) else repr(value)) for name, value in named]
        return repr((_instructions(code), values, self._details()))

    def _details(self) -> Any:
        return None


def _instructions(code: CodeType) -> Any:
    constants = [_instructions(value) if isinstance(value, CodeType) else value for value in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames


class _Subroutine(_Part):
    """A function that kernels call."""

    def _build(self) -> Any:
        import numba

        return numba.njit(**_OPTIONS, **_NOT_FROM_PYTHON)(self._linked())


class _Instruction(_Part):
    """An operation that numba has no word for; its function makes the LLVM code."""

    def __init__(self, function: Callable[..., Any], *details: Any) -> None:
        super().__init__(function)
        self._arguments = details

    def _build(self) -> Any:
        from numba.extending import intrinsic

        return intrinsic(self.function(*self._arguments))

    def _details(self) -> Any:
        return self._arguments


class Kernel(_Part):
    """A compiled function: call it, or `compile` it before. The first call compiles or loads it."""

    # What a call runs stands in a slot, so that no function of Python is between a caller and the compiled one.
    __slots__ = ("__call__",)
    __call__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        super().__init__(function)
        self.signature = signature
        self.__call__ = self._first_call

    @property
    def name(self) -> str:
        """Module and function, and the signature where a function is compiled for several."""
        return f"{self.function.__module__}.{self.function.__qualname__}({self.signature})"

    def compile(self) -> None:
        """Compile the kernel or load it from where it is kept, so that the first call need not."""
        with _lock:
            self.built()

    @property
    def is_kept(self) -> bool:
        """Whether a process that needs the kernel finds it compiled."""
        return self.is_in_library or self._cache().read() is not None

    @property
    def is_in_library(self) -> bool:
        """Whether the package came with the kernel compiled."""
        return hasattr(_library, self.name)

    def typed(self, **options: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return numba's dispatcher of the kernel, which has compiled nothing yet, and the types of the signature."""
        try:
            import numba
        except ImportError as error:
            what = "a package that came without compiled kernels, as for a platform that has no wheel,"
            raise MissingDependencyError(what, "numba", "jit") from error
        return numba.njit(**_OPTIONS, **options)(self._linked()), _types(self.signature)

    def _first_call(self, *arguments: Any) -> Any:
        self.compile()
        return self(*arguments)

    def _build(self) -> Any:
        if self.is_in_library:
            self.__call__ = getattr(_library, self.name)
            return self.__call__
        dispatcher, types = self.typed()
        numba_internals.keep_in(dispatcher, self._cache())
        # The compiler makes a great many objects, none of them garbage until it is done.
        collects = gc.isenabled()
        gc.disable()
        try:
            dispatcher.compile(types)
        finally:
            if collects:
                gc.enable()
        dispatcher.disable_compile()
        self.__call__ = dispatcher
        if dispatcher.stats.cache_misses:
            _tell_of_compiling()
        return dispatcher

    def _cache(self) -> KernelCache:
        return KernelCache(self.name, self.fingerprint())

    def _details(self) -> Any:
        return self.signature


@functools.cache
def _tell_of_compiling() -> None:
    _logger.info("compiling kernels once, of which there are %d (`arrowstate warm` does it beforehand)", len(KERNELS))


def library_is_there() -> bool:
    """Whether the package came with its kernels compiled."""
    return _library is not None


def load_compiler() -> None:
    """Load numba now, if a kernel needs it at its first call and it is installed."""
    if not all(kernel.is_in_library for kernel in KERNELS):
        with suppress(ImportError):
            import numba  # noqa: F401


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel for one signature."""

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(function, signature)
        KERNELS.append(declared)
        return declared

    return declare


def subroutine(function: Callable[..., Any]) -> Any:
    """Declare a function that kernels call; it becomes a part of each of them."""
    return _Subroutine(function)


def _types(signature: str) -> tuple[Any, ...]:
    from numba import types

    arguments: list[Any] = []
    for word in signature.split(","):
        kind = word.strip()
        writable = kind.startswith("out ")
        kind = kind.removeprefix("out ")
        if kind.endswith("[]"):
            arguments.append(numba_internals.array_types(kind.removesuffix("[]"))[writable])
        else:
            arguments.append(getattr(types, kind))
    return tuple(arguments)


prefetch: Any = _Instruction(numba_internals.prefetcher)
"""Asks for the cache line at a byte address; the address need not exist, nothing is read or raised."""

rotate: Any = _Instruction(numba_internals.rotator)
"""A uint64 rotated left by 1 to 63 bits."""

load_uint8: Any = _Instruction(numba_internals.loader, 8)
load_uint32: Any = _Instruction(numba_internals.loader, 32)
load_uint64: Any = _Instruction(numba_internals.loader, 64)

store_uint8: Any = _Instruction(numba_internals.storer, 8)
store_uint32: Any = _Instruction(numba_internals.storer, 32)
store_uint64: Any = _Instruction(numba_internals.storer, 64)


@subroutine
def load_offset(address: Any, row: Any, wide: Any) -> Any:
    """Return the offset of a row of a string or binary column, of 64 bits if it is wide and of 32 if not."""
    place = np.uint64(row)
    return load_uint64(address + place * _8) if wide else np.uint64(load_uint32(address + place * _4))
