"""Errors of the user's token."""

from dbt.adapters.iceberg_stream.errors.redacted import RedactedError


class IdentityError(RedactedError):
    """There is no valid token: whose, from which source, and what to do."""
