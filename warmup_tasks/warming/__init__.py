"""Carries out a plan, one shard at a time: sends what the plan says, and writes down what happened to each item.

Nothing here chooses an item, and nothing here calls one ready: that needs evidence, which ``validation/`` gathers.
"""
