"""Kernels as object code, and the library that they are linked into."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import multiprocessing
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

GLUE = Path(__file__).with_name("glue.c")
PROCESSORS = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "generic", "arm64": "generic"}
"""The oldest processor of a platform, for which code is made."""

# By type: its C type, the formats of an array's elements, the function of glue.c that takes a number, its type there.
_C_TYPES = {
    "boolean": ("int8_t", "?", "take_boolean", "int8_t"),
    "uint8": ("uint8_t", "B", "take_unsigned", "uint64_t"),
    "uint16": ("uint16_t", "H", "take_unsigned", "uint64_t"),
    "uint32": ("uint32_t", "IL", "take_unsigned", "uint64_t"),
    "uint64": ("uint64_t", "LQ", "take_unsigned", "uint64_t"),
    "int32": ("int32_t", "il", "take_signed", "int64_t"),
    "int64": ("int64_t", "lq", "take_signed", "int64_t"),
    "float64": ("double", "d", "take_double", "double"),
}
# By type that a kernel returns: its C type, and how an object of Python is made of it.
_RETURNED = {
    "none": ("void *", 'Py_BuildValue("")'),
    "bool": ("int8_t", "PyBool_FromLong(returned != 0)"),
    "int64": ("int64_t", "PyLong_FromLongLong(returned)"),
    "uint64": ("uint64_t", "PyLong_FromUnsignedLongLong(returned)"),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as object code whose one function has the given symbol."""

    name: str
    signature: str
    symbol: str
    returned: str
    code: bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile all kernels and link them."""
    parser = argparse.ArgumentParser(prog="kernel_library", description="Make the library of all kernels.")
    parser.add_argument("target", type=Path, help="the library")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--objects", type=Path, help="a folder in which object code is kept for the next time")
    options = parser.parse_args(arguments)
    for_any_processor()
    from arrowstate.cli.warm import KERNEL_MODULES
    from arrowstate_formats.compiled import KERNELS

    for module in KERNEL_MODULES:
        importlib.import_module(module)  # Whatever modules have kernels.
    try:
        # What is missing is found before the kernels are compiled, which takes a minute.
        compile_c("-fsyntax-only", "-Wno-unused-function", GLUE)
        names = [kernel.name for kernel in KERNELS]
        make_library(compiled(names, options.processes, options.objects), options.target)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"kernel_library: {error}", file=sys.stderr)
        return 1
    return 0


def for_any_processor() -> None:
    """Have numba, which must not be loaded yet, make code that every processor of the platform runs."""
    os.environ["NUMBA_CPU_NAME"] = PROCESSORS[platform.machine().lower()]
    os.environ["NUMBA_CPU_FEATURES"] = ""


def compiled(names: Sequence[str], processes: int, objects: Path | None = None) -> list[Compiled]:
    """Return the kernels of the names as object code; numba compiles one at a time in a process."""
    numbered = [(f"arrowstate_kernel_{number}", name, objects) for number, name in enumerate(names)]
    # Those that were declared last, of Flink's serializers, take longest.
    numbered.reverse()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=for_any_processor) as pool:
        return list(pool.map(_compile, numbered))


def _compile(wanted: tuple[str, str, Path | None]) -> Compiled:
    symbol, name, objects = wanted
    importlib.import_module(name.partition("(")[0].rpartition(".")[0])
    from arrowstate_formats.compiled import KERNELS

    kernel = next(kernel for kernel in KERNELS if kernel.name == name)
    versions = [metadata.version(package) for package in ("numba", "llvmlite")]
    made_from = repr((symbol, name, kernel.fingerprint(), versions, platform.machine(), os.environ["NUMBA_CPU_NAME"]))
    kept = objects and objects / f"{hashlib.sha256(made_from.encode()).hexdigest()[:32]}.o"
    if kept and kept.is_file():
        returned, _, code = kept.read_bytes().partition(b"\n")
        return Compiled(name, kernel.signature, symbol, returned.decode(), code)
    returned_type, code = lowered_to_object(kernel, symbol)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_bytes(returned_type.encode() + b"\n" + code)
        part.replace(kept)
    return Compiled(name, kernel.signature, symbol, returned_type, code)


def lowered_to_object(kernel: Any, symbol: str) -> tuple[str, bytes]:
    """Return the type that a kernel returns, and its object code under the symbol."""
    from llvmlite import binding

    from arrowstate_formats import numba_internals

    text, function, returned = numba_internals.lowered(*kernel.typed(no_cpython_wrapper=True))
    text = text.replace(f'@"{function}"', f"@{symbol}")
    text = re.sub(rf"@{re.escape(function)}(?![\w.$])", f"@{symbol}", text)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=os.environ["NUMBA_CPU_NAME"], features="", opt=3, reloc="pic", codemodel="default"
    )
    return returned, machine.emit_object(binding.parse_assembly(text))


def make_library(kernels: Sequence[Compiled], target: Path) -> None:
    """Link kernels into a module of Python."""
    with tempfile.TemporaryDirectory(prefix="arrowstate-kernels-") as temporary:
        folder = Path(temporary)
        source = folder / "kernels.c"
        source.write_text("\n".join([GLUE.read_text(), *map(_function, kernels), _module(kernels)]))
        parts = []
        for kernel in kernels:
            parts.append(folder / f"{kernel.symbol}.o")
            parts[-1].write_bytes(kernel.code)
        shared = ["-bundle", "-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else ["-shared", "-s"]
        target.parent.mkdir(parents=True, exist_ok=True)
        compile_c("-O2", "-fPIC", *shared, source, *parts, "-o", target)


def compile_c(*arguments: str | Path) -> None:
    """Run the C compiler that the environment variable `CC` names, or `cc`."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([*compiler, "-Wall", "-Wextra", include, *arguments], check=True)


def _function(kernel: Compiled) -> str:
    """Return the C function by which Python calls a kernel."""
    parameters, numbers, taken, passed, arrays = [], [], [], [], 0
    words = [word.strip() for word in kernel.signature.split(",")]
    for place, word in enumerate(words):
        c_type, formats, take, wide = _C_TYPES[word.removeprefix("out ").removesuffix("[]")]
        if word.endswith("[]"):
            parameters.append("void *, void *, intptr_t, intptr_t, void *, intptr_t, intptr_t")
            writable = int(word.startswith("out "))
            taken.append(f'take_array(given[{place}], arrays, &held, "{formats}", sizeof({c_type}), {writable})')
            array = f"arrays[{arrays}]"
            length = f"{array}.len / {array}.itemsize"
            passed.append(f"NULL, NULL, {length}, {array}.itemsize, {array}.buf, {length}, {array}.itemsize")
            arrays += 1
        else:
            parameters.append(c_type)
            numbers.append(f"{wide} number{place} = 0;")
            taken.append(f"{take}(given[{place}], &number{place})")
            passed.append(f"({c_type})number{place}")
    name, returned = f'"{kernel.name}"', _RETURNED[kernel.returned]
    checks = "\n        || ".join([f"takes(count, {len(words)}, {name})", *taken])
    return f"""
int {kernel.symbol}({returned[0]} *, void **, {", ".join(parameters)});
static PyObject *call_{kernel.symbol}(PyObject *module, PyObject *const *given, Py_ssize_t count) {{
    Py_buffer arrays[{max(arrays, 1)}];
    int held = 0, status;
    {returned[0]} returned = 0;
    void *error = NULL;
    PyObject *result = NULL;
    {" ".join(numbers)}
    (void)module;
    if (!({checks})) {{
        Py_BEGIN_ALLOW_THREADS
        status = {kernel.symbol}(&returned, &error, {", ".join(passed)});
        Py_END_ALLOW_THREADS
        if (!raised(status, {name}))
            result = {returned[1]};
    }}
    while (held > 0)
        PyBuffer_Release(&arrays[--held]);
    return result;
}}
"""


def _module(kernels: Sequence[Compiled]) -> str:
    methods = [
        f'    {{"{kernel.name}", (PyCFunction)(void (*)(void))call_{kernel.symbol}, METH_FASTCALL, NULL}},'
        for kernel in kernels
    ]
    return "\n".join(
        [
            "static PyMethodDef methods[] = {",
            *methods,
            "    {NULL, NULL, 0, NULL},",
            "};",
            "static struct PyModuleDef module = {",
            '    PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL,',
            "};",
            "PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }",
            "",
        ]
    )
