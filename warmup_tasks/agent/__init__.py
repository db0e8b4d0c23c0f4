"""The agent: one small process that publishes the replicas' epochs and answers readiness probes, as long as it runs.

It keeps no state of its own and decides nothing. When it is gone, epochs end and marks are not trusted; nothing else
breaks.
"""
