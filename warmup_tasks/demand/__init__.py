"""What was asked: heat, hot prefixes, adapters, repeated prompts and questions, from the requests before as_of.

Nothing is decided here and nothing is warmed: ``profile`` counts and forecasts, ``planning`` chooses.
"""

from warmup_tasks.demand.profile import profile

__all__ = ["profile"]
