"""Loops over arrays compiled with numba, for the rooms that need some: one way to compile, kept on disk.

A compiled loop calls only functions of its own file, because numba's cache on disk looks at one file's age; and it is
imported where it is needed, since loading numba takes half a second. No loop lives here.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

CompiledT = TypeVar("CompiledT", bound=Callable[..., Any])


def compiled(function: CompiledT) -> CompiledT:
    """Return the function compiled at its first call and kept on disk, where the disk can be written."""
    return _compiled(function)


def compiled_in_place(function: CompiledT) -> CompiledT:
    """Return the function compiled as by :func:`compiled`, one that makes no array and only works on those it is given.

    It counts no references to them. Counting them takes longer than a small function that is called for every value.
    """
    return _compiled(function, _nrt=False)


def _compiled(function: CompiledT, **options: bool) -> CompiledT:
    from numba import njit

    try:
        return cast("CompiledT", njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:  # numba finds no folder for its cache: a read-only installation without a home
        return cast("CompiledT", njit(nogil=True, **options)(function))
