"""Whether a JSON value is a default of a type (spec, "JSON single-value serialization")."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

NO_DEFAULT = re.compile(r"(unknown|variant|geometry|geography)", re.IGNORECASE)
# Before year 1 or after 9999, which Python does not know.
OTHER_YEARS = re.compile(r"[+-]\d{4,9}-\d\d-\d\d")
HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")


def is_default(kind: Any, value: Any) -> bool:
    """Return whether a value that is not null is a default of a type.

    Args:
        kind: the type as JSON.
        value: the default as JSON.
    """
    if isinstance(kind, Mapping):
        return _is_nested(kind, value)
    if NO_DEFAULT.match(kind):
        return False
    name = re.split(r"[\[(]", kind.lower())[0]
    test = TESTS.get(name)
    return test is None or test(kind.lower(), value)


def _is_nested(kind: Mapping[str, Any], value: Any) -> bool:
    if kind["type"] == "struct":
        return value == {}  # the defaults of its fields are those of the fields
    if kind["type"] == "list":
        return isinstance(value, list) and all(_is_item(kind["element"], v) for v in value)
    if not isinstance(value, Mapping):
        return False
    keys, values = value.get("keys"), value.get("values")
    return (
        isinstance(keys, list)
        and isinstance(values, list)
        and len(keys) == len(values)
        and all(_is_item(kind["key"], v) for v in keys)
        and all(_is_item(kind["value"], v) for v in values)
    )


def _is_item(kind: Any, value: Any) -> bool:
    return value is None or is_default(kind, value)


def _is_integer(bits: int) -> Callable[[str, Any], bool]:
    return lambda _, value: (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    )


def _is_number(_: str, value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _parses(parse: Callable[[str], Any]) -> Callable[[str, Any], bool]:
    def test(_: str, value: Any) -> bool:
        try:
            if not (isinstance(value, str) and OTHER_YEARS.match(value)):
                parse(value)
        except (ValueError, TypeError, InvalidOperation):
            return False
        return isinstance(value, str)

    return test


def _is_moment(zoned: bool) -> Callable[[str, Any], bool]:
    def parse(text: str) -> None:
        # Python knows microseconds only.
        moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d{1,3}", r"\1", text))
        if (moment.tzinfo is not None) != zoned:
            raise ValueError("the time zone")

    return _parses(parse)


def _is_decimal(kind: str, value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        number = Decimal(value)
    except InvalidOperation:
        return False
    exponent = number.as_tuple().exponent
    precision, scale = (int(number) for number in re.findall(r"\d+", kind))
    return exponent == -scale and len(number.as_tuple().digits) <= max(precision, scale)


def _is_fixed(kind: str, value: Any) -> bool:
    length = int(re.sub(r"\D", "", kind))
    return isinstance(value, str) and len(value) == 2 * length and bool(HEX.fullmatch(value))


TESTS: Mapping[str, Callable[[str, Any], bool]] = {
    "boolean": lambda _, value: isinstance(value, bool),
    "int": _is_integer(32),
    "long": _is_integer(64),
    "float": _is_number,
    "double": _is_number,
    "decimal": _is_decimal,
    "date": _parses(date.fromisoformat),
    "time": _parses(time.fromisoformat),
    "timestamp": _is_moment(False),
    "timestamp_ns": _is_moment(False),
    "timestamptz": _is_moment(True),
    "timestamptz_ns": _is_moment(True),
    "string": lambda _, value: isinstance(value, str),
    "uuid": _parses(UUID),
    "fixed": _is_fixed,
    "binary": lambda _, value: isinstance(value, str) and bool(HEX.fullmatch(value)),
}
