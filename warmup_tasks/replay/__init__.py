"""What would have happened: a log played against caches in simulated time, or sent again to real replicas.

Nothing here decides what to warm, and nothing here reads a log file: requests come from the lake or from memory. What a
choice is compared with (simple rules, the oracle) lives here too, since both know only how caches behave.
"""
