"""`iceberg-stream shell`: dbt's commands in one process that keeps dbt and the project loaded."""
