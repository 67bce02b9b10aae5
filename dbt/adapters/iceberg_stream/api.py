"""What programs import: a project's catalog, and Arrow streams into its tables."""

from dbt.adapters.iceberg_stream.profile.project import open_catalog
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Ingested, Mode, ingest

__all__ = ["Ingested", "Mode", "ingest", "open_catalog"]
