"""What one machine needs to run a whole night: Redis, engines, agent, Airflow; started here, stopped here."""
