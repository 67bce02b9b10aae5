"""The type variant of format version 3, which PyIceberg 0.12 does not have.

Without it, PyIceberg refuses the metadata of a table with such a column, whatever is asked of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, ListType, MapType, PrimitiveType


class VariantType(PrimitiveType):
    """A value of any type (spec, "Semi-structured Types")."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> TableVersion:
        """Return the first format version that has the type."""
        return 3


_parse = IcebergType.__dict__["handle_primitive_type"].__func__
_create_list, _create_map = ListType.__init__, MapType.__init__


def _parse_variant(cls: type[IcebergType], value: Any, handler: Any) -> IcebergType:
    return VariantType() if value == "variant" else _parse(cls, value, handler)


def _list(self: ListType, *args: Any, **fields: Any) -> None:
    _create_list(self, *args, **_with_variants(fields))


def _map(self: MapType, *args: Any, **fields: Any) -> None:
    _create_map(self, *args, **_with_variants(fields))


def _with_variants(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: VariantType() if v == "variant" else v for name, v in fields.items()}


def repair() -> None:
    """Teach PyIceberg the type in this process."""
    # PyIceberg calls it for the types of columns and of fields of structs.
    IcebergType.handle_primitive_type = classmethod(_parse_variant)  # type: ignore[assignment]
    ListType.__init__ = _list  # type: ignore[method-assign]
    MapType.__init__ = _map  # type: ignore[method-assign]
