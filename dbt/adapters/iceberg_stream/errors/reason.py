"""The text of an error for the end of a sentence."""

from __future__ import annotations

from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.iceberg_stream.errors.redaction import without_secrets


def reason(error: Exception) -> str:
    """Return the message of an error, without the kind of error that dbt puts before it.

    Args:
        error: the error.
    """
    return without_secrets(str(error.msg if isinstance(error, DbtRuntimeError) else error))
