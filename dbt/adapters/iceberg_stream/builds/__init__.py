"""Builds: relations that a run of dbt stages, and publishes in one commit."""
