"""Cast values of a schema's types to the types of a source's `columns`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import (
    Bad,
    any_of,
    convert_each,
    list_bounds,
    map_entries,
    of_items,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.schema_types import Scalar
from dbt.adapters.iceberg_stream.stream.sources.formats.values import (
    DATE_TEXT,
    INSTANT,
    INSTANT_TEXT,
    IS_NUMBER,
    LOCAL,
    LOCAL_TEXT,
    Values,
    fit_decimal,
    read_number,
)

TRUE, FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
# Floats in these bounds are written without an exponent.
PLAIN_FROM, PLAIN_BELOW = 1e-3, 1e7
NAMES = {"nan": math.nan, "infinity": math.inf, "+infinity": math.inf, "-infinity": -math.inf}
NAMES |= {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}
JSON = msgspec.json.Encoder(decimal_format="number")


def cast(array: pa.Array, target: pa.DataType, values: Values) -> tuple[pa.Array, Bad]:
    """Return values with the type of a column, and which of them it cannot take.

    Args:
        array: the values; those of structs are matched by names, in any case.
        target: the column's type.
        values: knows the time zone of times without one.
    """
    kind = array.type
    if kind == target:
        return array, None
    absent = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind) and pa.types.is_struct(target):
        by_name = {field.name.lower(): place for place, field in enumerate(kind)}
        parts = array.flatten()
        pairs = [
            cast(parts[by_name[field.name.lower()]], field.type, values)
            if field.name.lower() in by_name
            else (pa.nulls(len(array), field.type), None)
            for field in target
        ]
        children = [child for child, _ in pairs]
        struct = pa.StructArray.from_arrays(children, fields=list(target), mask=absent)
        return struct, any_of(*(bad for _, bad in pairs))
    if pa.types.is_map(kind) and pa.types.is_map(target):
        lengths, offsets = list_bounds(array)
        keys, items = map_entries(array)
        items, bad = cast(items, target.item_type, values)
        maps = pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=absent)
        return maps, of_items(bad, lengths)
    if pa.types.is_list(kind) and pa.types.is_list(target):
        lengths, offsets = list_bounds(array)
        items, bad = cast(array.flatten(), target.value_type, values)
        lists = pa.ListArray.from_arrays(offsets, items, type=target, mask=absent)
        return lists, of_items(bad, lengths)
    return convert_each(array, target, _function(kind, target, values))


def _function(
    kind: pa.DataType, target: pa.DataType, values: Values
) -> Callable[[pa.Array], pa.Array]:
    """Return what casts values; it raises pa.ArrowInvalid for those that it cannot cast."""
    if pa.types.is_string(target):
        return _to_text(kind, values)
    if pa.types.is_string(kind):
        return _from_text(target, values)
    if pa.types.is_timestamp(kind) or pa.types.is_timestamp(target):
        return partial(_time, target=target, values=values)
    if pa.types.is_floating(kind) and pa.types.is_integer(target):
        return partial(_truncated, target=target)
    if pa.types.is_boolean(target) and pa.types.is_floating(kind):
        return lambda array: pc.not_equal(array.cast(pa.float64(), safe=False), 0.0)
    if pa.types.is_floating(target) and not pa.types.is_decimal(kind):
        return lambda array: _number(array).cast(target, safe=False)
    if pa.types.is_decimal(kind) and not pa.types.is_decimal(target):
        return partial(_of_decimal, target=target)
    if pa.types.is_decimal(target):
        return partial(_to_decimal, target=target)
    return lambda array: _number(array).cast(target)


def _number(array: pa.Array) -> pa.Array:
    return array.cast(pa.int8()) if pa.types.is_boolean(array.type) else array


def _truncated(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pc.any(pc.invert(pc.is_finite(array))).as_py():
        raise pa.ArrowInvalid("not finite")
    return pc.trunc(array).cast(target)


def _of_decimal(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast decimals to other numbers, unless digits would be lost."""
    numbers = array.to_pylist()
    own = float if pa.types.is_floating(target) else int
    values = [None if number is None else own(number) for number in numbers]
    result = pa.array(values).cast(target) if values else pa.nulls(0, target)
    for number, value in zip(numbers, result.to_pylist(), strict=True):
        if number is not None and Decimal(repr(own(value))) != number:
            raise pa.ArrowInvalid("digits would be lost")
    return result


def _to_decimal(array: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    if pa.types.is_decimal(array.type):
        # Other digits than zeros must not be lost.
        return array.cast(target)
    numbers = map(_decimal, _number(array).to_pylist())
    return pa.array([fit_decimal(number, target, rounds=True) for number in numbers], target)


def _decimal(value: Any) -> Decimal | None:
    """Return the number that a value is written as; a text has it without spaces around it."""
    if value is None:
        return None
    text = value.strip() if isinstance(value, str) else repr(value)
    return read_number(text)


def _time(array: pa.Array, target: pa.DataType, values: Values) -> pa.Array:
    """Cast between dates, times with and those without a zone."""
    kind = array.type
    if pa.types.is_date(kind) and target == INSTANT:
        return values.in_zone(array.cast(LOCAL))
    if kind == INSTANT and target == LOCAL or (kind == INSTANT and pa.types.is_date(target)):
        local = values.out_of_zone(array)
        return local if target == LOCAL else pc.floor_temporal(local, unit="day").cast(target)
    if kind == LOCAL and target == INSTANT:
        return values.in_zone(array)
    if kind == LOCAL and pa.types.is_date(target):
        return pc.floor_temporal(array, unit="day").cast(target)
    return array.cast(target)


def _from_text(target: pa.DataType, values: Values) -> Callable[[pa.Array], pa.Array]:
    if pa.types.is_binary(target):
        return lambda array: array.cast(target)
    if pa.types.is_decimal(target):
        return partial(_to_decimal, target=target)
    forms = {INSTANT: INSTANT_TEXT, LOCAL: LOCAL_TEXT, pa.date32(): DATE_TEXT}
    if target in forms:
        node = Scalar(target, pa.string(), forms[target])
        return lambda array: values.convert_all(pc.utf8_trim_whitespace(array), node)
    if pa.types.is_boolean(target):
        return lambda array: _of_texts(array, target, _boolean)
    return lambda array: _of_texts(array, target, float if pa.types.is_floating(target) else int)


def _of_texts(array: pa.Array, target: pa.DataType, read: Callable[[str], Any]) -> pa.Array:
    values: list[Any] = []
    for text in array.to_pylist():
        text = text if text is None else text.strip()
        if text is not None and read is int and not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
            raise pa.ArrowInvalid(text)
        if text is not None and read is float and not IS_NUMBER.fullmatch(text):
            values.append(_named_float(text))
        else:
            values.append(None if text is None else read(text))
    return pa.array(values, target)


def _named_float(text: str) -> float:
    if (value := NAMES.get(text.lower())) is None:
        raise pa.ArrowInvalid(text)
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in (*TRUE, *FALSE):
        raise pa.ArrowInvalid(text)
    return text.lower() in TRUE


def _to_text(kind: pa.DataType, values: Values) -> Callable[[pa.Array], pa.Array]:
    if pa.types.is_timestamp(kind):
        return partial(_time_texts, values=values)
    if pa.types.is_nested(kind):
        return partial(_written, write=partial(_json, kind=kind, values=values))
    if pa.types.is_floating(kind):
        return partial(_written, write=partial(float_text, single=kind == pa.float32()))
    if pa.types.is_decimal(kind):
        return partial(_written, write=_decimal_text)
    return lambda array: array.cast(pa.string())


def _written(array: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    options = {"maps_as_pydicts": "lossy"} if pa.types.is_nested(array.type) else {}
    values = array.to_pylist(**options)
    return pa.array([None if value is None else write(value) for value in values], pa.string())


def _json(value: Any, kind: pa.DataType, values: Values) -> str:
    return JSON.encode(_plain(value, kind, values)).decode()


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def float_text(value: float, single: bool = False) -> str:
    """Return a float as Java writes it.

    Args:
        value: the float.
        single: whether it has 32 bits.
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    text = str(np.float32(value)) if single else repr(value)
    if value == 0 or PLAIN_FROM <= abs(value) < PLAIN_BELOW:
        return text if "e" not in text else format(Decimal(text), "f")
    sign, digits, exponent = Decimal(text).normalize().as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    point = f"{written[0]}.{written[1:] or '0'}"
    return f"{'-' if sign else ''}{point}E{exponent + len(written) - 1}"


def _time_texts(array: pa.Array, values: Values) -> pa.Array:
    local = values.out_of_zone(array) if array.type == INSTANT else array
    return pc.replace_substring_regex(local.cast(pa.string()), r"\.?0+$", "")


def _plain(value: Any, kind: pa.DataType, values: Values) -> Any:
    """Return a value as it is written in JSON, without members that are null."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        pairs = ((field.name, _plain(value[field.name], field.type, values)) for field in kind)
        return {name: own for name, own in pairs if own is not None}
    if pa.types.is_map(kind):
        return {str(key): _plain(item, kind.item_type, values) for key, item in value.items()}
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type, values) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return float_text(value)
    if pa.types.is_timestamp(kind):
        return value.isoformat().replace("+00:00", "Z")
    return value
