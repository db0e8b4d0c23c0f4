"""Warm-up of generative-AI services: choose from the logs, load ahead, prove it, mark it ready.

The sub-packages are floors; a floor imports only what lies below it (``docs/architecture.md`` draws them).
"""

__version__ = "0.1.0"
