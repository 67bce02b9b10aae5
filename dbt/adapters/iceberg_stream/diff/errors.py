"""Errors of comparisons."""

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.errors.redacted import RedactedError


class DiffError(RedactedError, DbtRuntimeError):
    """Two versions cannot be compared: which table or column, why, and what to do."""


class Expired(DiffError):
    """A version that nobody named has expired."""
