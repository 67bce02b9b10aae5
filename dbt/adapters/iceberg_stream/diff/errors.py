"""Errors of comparisons."""

from dbt_common.exceptions import DbtRuntimeError


class DiffError(DbtRuntimeError):
    """Two versions cannot be compared: which table or column, why, and what to do."""


class Expired(DiffError):
    """A version that nobody named has expired."""
