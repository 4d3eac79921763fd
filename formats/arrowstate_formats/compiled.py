"""How the package compiles kernels: cached on disk, without the GIL, loading from unaligned addresses.

Kernels take byte addresses where data may lie anywhere in a mapped file: numpy would copy unaligned
values, the processor loads them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["kernel", "load_uint8", "load_uint16", "load_uint32", "load_uint64", "prefetch"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function on first use, keep it on disk for the next process, run it without the GIL."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


def _loader(numba_type: types.Integer) -> Any:
    """Return an intrinsic that reads one little-endian integer at a byte address."""

    def load(_typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], context.get_value_type(numba_type).as_pointer())
            loaded = builder.load(pointer)
            # Without this LLVM may take the address for a multiple of the width and choose an aligned instruction.
            loaded.align = 1
            return loaded

        return numba_type(address), generate

    return intrinsic(load)


@intrinsic
def _prefetch(_typing_context: Any, _address: Any) -> Any:

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer_type = ir.IntType(8).as_pointer()
        integer = ir.IntType(32)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer_type, integer, integer, integer]),
            "llvm.prefetch.p0",
        )
        pointer = builder.inttoptr(arguments[0], pointer_type)
        # For reading, to be kept in all caches, data.
        builder.call(function, [pointer, *(ir.Constant(integer, value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


prefetch: Any = _prefetch
"""Asks for the cache line at a byte address; the address need not exist, nothing is read or raised."""

load_uint8 = _loader(types.uint8)
load_uint16 = _loader(types.uint16)
load_uint32 = _loader(types.uint32)
load_uint64 = _loader(types.uint64)
