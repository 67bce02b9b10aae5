"""Errors of tables whose metadata cannot be read."""

from __future__ import annotations

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.tables.commit.manifests import DAMAGED

# What reading a table's metadata raises: the catalog's refusals, the storage, damaged files.
UNREADABLE: tuple[type[Exception], ...] = (DbtRuntimeError, OSError, *DAMAGED)


def why_unreadable(error: Exception) -> str:
    """Return why a table cannot be read, as a sentence.

    Args:
        error: one of `UNREADABLE`.
    """
    if isinstance(error, DbtRuntimeError):
        return reason(error)
    return f"Its metadata cannot be read ({type(error).__name__}: {error})."
