"""What would have happened: logged requests, sent again to real replicas in one state of their caches or another.

Nothing here decides what to warm, and nothing here reads a log file.
"""
