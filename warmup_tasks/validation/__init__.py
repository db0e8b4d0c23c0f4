"""Proves, or refuses, that what was warmed is resident, right and faster: twins, probes, evidence, marks (spec 6).

Nothing here warms on purpose, and nothing here chooses what to warm.
"""
