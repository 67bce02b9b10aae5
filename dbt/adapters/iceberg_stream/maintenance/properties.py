"""Table properties that are numbers."""

from __future__ import annotations

from collections.abc import Mapping

from dbt_common.exceptions import DbtRuntimeError
from pyiceberg.utils.properties import property_as_int

from dbt.adapters.iceberg_stream.errors.redacted import RedactedError


class PropertyError(RedactedError, DbtRuntimeError):
    """A table property has a value that is not valid."""


def int_property(properties: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Return a table property that is a whole number; the default if it is not set.

    Args:
        properties: of the table.
        name: of the property.
        default: returned if it is not set.

    Raises:
        PropertyError: it is not a whole number.
    """
    try:
        return property_as_int(dict(properties), name, default)
    except ValueError as error:
        raise PropertyError(
            f"The table property {name} is `{properties[name]}`, which is not a whole number. "
            "Set it to a whole number, or unset it."
        ) from error
