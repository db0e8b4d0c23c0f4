"""What ties the library to Airflow: the Params form, the context, retries, shard lists. No decision is taken here.

``dags/`` imports this room while it is parsed, so nothing heavy is imported at module level and no network is touched.
"""
