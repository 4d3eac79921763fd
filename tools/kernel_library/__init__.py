"""The library that holds all kernels compiled: what a wheel for a platform brings, so that nobody needs a compiler.

numba lowers each kernel to LLVM code for any processor of the platform, llvmlite makes object code of it, and the C
compiler links that with `glue.c` and a function for each kernel, by which Python calls it. The library uses the stable
ABI of Python: one wheel serves all versions.
"""
