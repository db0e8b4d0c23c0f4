"""The replay's inner loops, compiled with numba: arrays in, arrays out.

Only the modules of ``replay/`` call them, and import them when they are needed: loading numba takes half a second. No
policy, no reading, no checking of arguments.
"""

from warmup_tasks.compiling import compiled

__all__ = ["compiled"]
