"""Where dbt's adapters have their credentials; see `profile/credentials.py`."""

from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials

__all__ = ["IcebergStreamCredentials"]
