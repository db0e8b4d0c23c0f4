"""Which parameter values serve best: studies over simulated traffic, and what they leave for the next night.

Everything is measured in simulated time on logs. Nothing here talks to an engine, and evaluation constants (windows,
weights, the cap on false triggers) are never tuned.
"""
