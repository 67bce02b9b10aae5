"""Checks that a Spark Connect server meets the adapter's requirements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from dbt.adapters.iceberg_stream.engines.launch import ICEBERG_EXTENSIONS
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError

# The first Spark whose Connect protocol has all features that the adapter uses.
OLDEST_SPARK = (4, 1)
OLDEST_ICEBERG = (1, 10)
VERSION = re.compile(r"(\d+)\.(\d+)")


def check_server(session: Session, catalog: str) -> Iterator[str]:
    """Check the server's components.

    Args:
        session: a session on the server.
        catalog: the catalog's name.

    Yields:
        One line for each component, with its version.

    Raises:
        StatementError: a component is missing or too old.
    """
    spark = session.version()
    yield f"Server: Spark {spark}, client {_client_version()}"
    if _number(spark) < OLDEST_SPARK:
        raise StatementError(
            f"The server has Spark {spark}. Upgrade it to {_dotted(OLDEST_SPARK)} or newer."
        )
    rows = session.query(f"select `{catalog}`.system.iceberg_version() as v")
    iceberg = str(rows.column("v")[0].as_py())
    yield f"Server: Iceberg {iceberg.split('(')[0].strip()} in the catalog `{catalog}`"
    if _number(iceberg) < OLDEST_ICEBERG:
        raise StatementError(
            f"The server has Iceberg {iceberg}. Upgrade it to {_dotted(OLDEST_ICEBERG)} or newer."
        )
    if ICEBERG_EXTENSIONS not in session.setting("spark.sql.extensions"):
        raise StatementError(
            "The server does not have Iceberg's SQL extensions. Start it with "
            f"spark.sql.extensions={ICEBERG_EXTENSIONS}."
        )


def _number(text: str) -> tuple[int, int]:
    match = VERSION.search(text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _dotted(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))


def _client_version() -> str:
    for package in ("pyspark", "pyspark-client"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "unknown"
