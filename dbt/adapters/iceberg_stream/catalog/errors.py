"""Errors of catalogs and of commits to them."""

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.errors.redacted import RedactedError


class CatalogError(RedactedError, DbtRuntimeError):
    """The catalog refused or failed: which operation, for whom, why, and what to do."""


class CommitConflict(CatalogError):
    """Another writer changed the table first; nothing was committed."""


class TableChanged(CatalogError):
    """The table was created, dropped or given other columns since the write began."""


class CommitStateUnknown(CatalogError):
    """The catalog did not answer a commit, which may or may not have succeeded."""
