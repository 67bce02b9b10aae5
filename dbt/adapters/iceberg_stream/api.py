"""What programs import: a project's catalog, streams into its tables, and comparisons of them."""

from dbt.adapters.iceberg_stream.diff.diff import diff
from dbt.adapters.iceberg_stream.diff.difference import TableDifference
from dbt.adapters.iceberg_stream.profile.project import open_catalog
from dbt.adapters.iceberg_stream.tables.ingest.ingest import Ingested, Mode, ingest

__all__ = ["Ingested", "Mode", "TableDifference", "diff", "ingest", "open_catalog"]
