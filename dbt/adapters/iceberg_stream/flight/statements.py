"""What callers of the Flight SQL server may run.

All statements run in the engine's process, as its user of the operating system. So Spark itself
refuses what may reach beyond the catalog: `StatementGuard` in engines/jvm checks each statement and
view as Spark's parser reads it, and each relation as Spark's analyzer finds it.
"""

from __future__ import annotations

from dbt.adapters.iceberg_stream.engines.jars import own_jar
from dbt.adapters.iceberg_stream.engines.launch import STATEMENT_GUARD
from dbt.adapters.iceberg_stream.engines.session import Session
from dbt.adapters.iceberg_stream.errors.spark import StatementError

ONLY_CATALOG = "spark.icebergstream.onlyCatalog"
# The guard allows queries only if a statement ends with this.
ONLY_A_QUERY = "\n/* only a query */"
# Spark's conditions of the guard's errors.
NOT_ALLOWED = "STATEMENT_NOT_ALLOWED"
NOT_A_QUERY = "STATEMENT_IS_NOT_A_QUERY"
# Harmless, and refused by the guard.
PROBE = "select input_file_name()"


def guard_settings(catalog: str) -> dict[str, str]:
    """Return the settings of a session that may use one catalog and nothing else.

    Args:
        catalog: its name.
    """
    return {
        ONLY_CATALOG: catalog,
        # No tables by path, and no substitution of environment variables.
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.variable.substitute": "false",
    }


def require_guard(session: Session) -> None:
    """Require that Spark refuses what a caller must not run.

    Args:
        session: a caller's new session.

    Raises:
        StatementError: the Spark server does not load the guard, or does not answer.
    """
    try:
        session.schema(PROBE)
    except StatementError as error:
        if error.condition == NOT_ALLOWED:
            return
        raise
    raise StatementError(
        "The Spark server does not check the statements of callers. Copy "
        f"{own_jar().name} of this package to its class path, and append {STATEMENT_GUARD} to its "
        "`spark.sql.extensions`."
    )
