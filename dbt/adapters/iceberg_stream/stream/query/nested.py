"""Fields of structs, and elements of arrays and maps."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dbt.adapters.iceberg_stream.stream.query.literals import count, is_text, written
from dbt.adapters.iceberg_stream.stream.query.translator import Translate, Translator
from dbt.adapters.iceberg_stream.stream.query.values import Unsupported, Value, call, scalar


def field_of(value: Value, name: str) -> Value:
    """Return a field of structs, which is null where the struct is.

    Args:
        value: the structs.
        name: the field's name, in upper or lower case.

    Raises:
        Unsupported: the value is no struct, or has no or several fields of this name.
    """
    if not pa.types.is_struct(value.type):
        raise Unsupported
    fields = [value.type.field(index) for index in range(value.type.num_fields)]
    places = [n for n, field in enumerate(fields) if field.name.lower() == name.lower()]
    if len(places) != 1:
        raise Unsupported
    return call(pc.struct_field, fields[places[0]].type, value, indices=places)


def _field(translator: Translator, node: exp.Dot) -> Value:
    if not isinstance(node.expression, exp.Identifier):
        raise Unsupported
    return field_of(translator.value(node.this), node.expression.name)


def _element(translator: Translator, node: exp.Bracket) -> Value:
    """Translate `a[0]`; PyArrow refuses places behind the end, as Spark does."""
    if len(node.expressions) != 1 or node.args.get("offset") or "safe" in node.args:
        raise Unsupported
    value, [place] = translator.value(node.this), node.expressions
    if pa.types.is_list(value.type):
        index = scalar(count(place), pa.int64())
        return call(pc.list_element, value.type.value_type, value, index)
    if not pa.types.is_map(value.type) or value.type.key_type != pa.string() or not is_text(place):
        raise Unsupported
    kind = value.type.item_type
    return call(pc.map_lookup, kind, value, query_key=written(place), occurrence="first")


def _size(translator: Translator, node: exp.ArraySize) -> Value:
    value = translator.value(node.this)
    if not pa.types.is_list(value.type):
        raise Unsupported
    # It depends on Spark's settings whether these have none, or -1.
    translator.inputs.doubt(pc.is_null, value)
    return call(pc.list_value_length, pa.int32(), value)


FUNCTIONS: Mapping[type[exp.Expr], Translate] = {
    exp.Dot: _field,
    exp.Bracket: _element,
    exp.ArraySize: _size,
}
