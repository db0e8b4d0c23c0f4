"""Loops over arrays compiled with numba, for the rooms that need some: one way to compile, kept on disk.

A compiled loop calls only functions of its own file, because numba's cache on disk looks at one file's age; and it is
imported where it is needed, since loading numba takes half a second. No loop lives here.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

CompiledT = TypeVar("CompiledT", bound=Callable[..., Any])


def compiled(function: CompiledT) -> CompiledT:
    """Return the function compiled at its first call and kept on disk, where the disk can be written."""
    from numba import njit

    try:
        return cast("CompiledT", njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba finds no folder for its cache: a read-only installation without a home
        return cast("CompiledT", njit(nogil=True)(function))
