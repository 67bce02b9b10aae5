"""`python -m dbt.adapters.iceberg_stream` is the command `iceberg-stream`."""

from dbt.adapters.iceberg_stream.cli import main

main(prog_name="iceberg-stream")
