"""Which prefixes will be asked for again: features of the log before a moment, a boosted model trained on its own past.

Arrays in, numbers out. What is done with a prediction is said in ``forecast.py`` and, for plans, in ``planning/``.
"""

from warmup_tasks.demand.reuse.history import History
from warmup_tasks.demand.reuse.predict import Basis, Prediction, predict

__all__ = ["Basis", "History", "Prediction", "predict"]
