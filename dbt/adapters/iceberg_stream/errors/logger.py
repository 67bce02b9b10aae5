"""Log lines without secrets: what they are made of may come from anywhere."""

from __future__ import annotations

from dbt.adapters.events.logging import AdapterLogger

from dbt.adapters.iceberg_stream.errors.redaction import without_secrets


class Logger(AdapterLogger):
    """Logs through dbt, without secrets."""

    def __init__(self) -> None:
        super().__init__("Iceberg_Stream")

    def debug(self, msg: object, *args: object) -> None:
        """Log a line that only `--debug` and the log file show."""
        super().debug(without_secrets(str(msg)), *args)

    def info(self, msg: object, *args: object) -> None:
        """Log a line."""
        super().info(without_secrets(str(msg)), *args)

    def warning(self, msg: object, *args: object) -> None:
        """Log a warning."""
        super().warning(without_secrets(str(msg)), *args)

    def error(self, msg: object, *args: object) -> None:
        """Log an error."""
        super().error(without_secrets(str(msg)), *args)
