"""What numba and llvmlite do not promise to keep: how instructions are written, and how compiled code is kept on disk.

All of it is here, and `tests/test_internals.py` fails by the name of what an upgrade has changed.
"""

from __future__ import annotations

import functools
import pickle
from typing import Any


def keep_in(dispatcher: Any, cache: Any) -> None:
    """Have a dispatcher ask a cache of ours for compiled code, in the place of one that numba makes."""
    dispatcher._cache = cache


def dumped(compiled: Any) -> bytes:
    """Return what a dispatcher gives its cache as bytes."""
    from numba.core.serialize import dumps

    data: bytes = dumps(compiled._reduce())  # type: ignore[no-untyped-call]
    return data


def rebuilt(target_context: Any, data: bytes) -> Any:
    """Return compiled code made of what `dumped` returned; what is in it is executed."""
    from numba.core.compiler import CompileResult

    # Until this is done numba's own functions have no addresses, and a kernel that is loaded would jump anywhere.
    target_context.refresh()
    return CompileResult._rebuild(target_context, *pickle.loads(data))  # type: ignore[no-untyped-call]  # noqa: S301


def lowered(dispatcher: Any, types: tuple[Any, ...]) -> tuple[str, str, str]:
    """Compile for the types; return (LLVM code, its function, the type that is returned: none or a number's).

    The function takes where to write what is returned, where to write what was raised, and the arguments: a number as
    it is; an array as two owners, which are null, the number of its elements, the bytes of an element, its address,
    and number and bytes once more. It returns 0 or -2 where nothing was raised.
    """
    dispatcher.compile(types)
    compiled = dispatcher.overloads[types]
    returned = compiled.signature.return_type
    # A kernel that returns a constant has a type of its own.
    returned = getattr(returned, "literal_type", returned)
    return dispatcher.inspect_llvm(types), compiled.fndesc.llvm_func_name, returned.name


@functools.cache
def array_types(element: str) -> dict[bool, Any]:
    """Return the types of arrays of an element for a signature, those that may be written under True.

    numba makes the type of an array when it first sees one, and gives it a number, without a lock. Where two threads do
    so at once it may remember a number that no signature knows, and it refuses arrays of the type from then on. So the
    types of all arrays that fit are made here, by one thread and before the first call, and are kept.
    """
    from numba import types
    from numba.core.registry import cpu_target

    # Not said to be aligned, and read-only where that is enough: so it takes arrays of every kind, and the processor
    # loads unaligned values as they are.
    forms = {
        (writable, aligned): types.Array(getattr(types, element), 1, "C", readonly=not writable, aligned=aligned)
        for writable in (False, True)
        for aligned in (False, True)
    }
    formal = {writable: forms[writable, False] for writable in (False, True)}
    for actual in forms.values():
        for each in formal.values():
            cpu_target.typing_context.install_possible_conversions([actual], [each])
    _ARRAYS.extend(forms.values())
    return formal


_ARRAYS: list[Any] = []
"""Types of arrays; numba forgets the number of one that nobody holds."""


def loader(bits: int) -> Any:
    """Return what makes the code of a load of that many bits from an address, aligned or not."""
    from numba import types

    numba_type = getattr(types, f"uint{bits}")

    def load(_typing_context: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], context.get_value_type(numba_type).as_pointer())
            loaded = builder.load(pointer)
            # Without this LLVM may take the address for a multiple of the width and choose an aligned instruction.
            loaded.align = 1
            return loaded

        return numba_type(types.uint64), generate

    return load


def storer(bits: int) -> Any:
    """Return what makes the code of a store of that many bits to an address, aligned or not."""
    from numba import types

    numba_type = getattr(types, f"uint{bits}")

    def store(_typing_context: Any, _address: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], context.get_value_type(numba_type).as_pointer())
            builder.store(arguments[1], pointer).align = 1
            return context.get_dummy_value()

        return types.void(types.uint64, numba_type), generate

    return store


def prefetcher() -> Any:
    """Return what makes the code that asks for a cache line."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def prefetch(_typing_context: Any, _address: Any) -> Any:
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

    return prefetch


def rotator() -> Any:
    """Return what makes the code that rotates a uint64 to the left."""
    from llvmlite import ir
    from numba import types

    def rotate(_typing_context: Any, _value: Any, _bits: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value, bits = arguments
            rest = builder.and_(builder.neg(bits), ir.Constant(bits.type, 63))
            return builder.or_(builder.shl(value, bits), builder.lshr(value, rest))

        return types.uint64(types.uint64, types.uint64), generate

    return rotate
