"""Compare values of types that Spark does not compare: maps, variants, and what contains them."""

from __future__ import annotations

from collections.abc import Iterator

from dbt.adapters.iceberg_stream.sql.quoting import literal, quote

OPENING, CLOSING = "<(", ">)"


def is_comparable(kind: str) -> bool:
    """Return whether Spark compares values of a type; it cannot compare maps and variants.

    Args:
        kind: the type, in Spark's words.
    """
    return "map<" not in kind and "variant" not in kind


def comparable_sql(value: str, kind: str, depth: int = 0, by_name: bool = False) -> str:
    """Return an expression that Spark can compare, and that is equal for equal values.

    The entries of maps are sorted; variants become their JSON and their types.

    Args:
        value: the value, as SQL.
        kind: its type, in Spark's words.
        depth: how many lambdas the value is in.
        by_name: whether the value may have the fields of structs in another order.
    """
    if is_comparable(kind) and not (by_name and "struct<" in kind):
        return value
    if kind == "variant":
        return f"struct(to_json({value}), schema_of_variant({value}))"
    outer, _, inner = kind.partition("<")
    item = f"dbt_item_{depth}"
    parts = list(split_type(inner[:-1], ","))
    if outer == "array":
        return f"transform({value}, {item} -> {comparable_sql(item, parts[0], depth + 1, by_name)})"
    if outer == "map":
        of_value = comparable_sql(f"{item}.value", parts[1], depth + 1, by_name)
        entry = f"struct({item}.key, {of_value} as value)"
        return f"array_sort(transform(map_entries({value}), {item} -> {entry}))"
    if outer != "struct":
        return value
    fields = []
    for part in parts:
        name, field_kind = split_field(part)
        field = comparable_sql(f"{value}.{quote(name)}", field_kind, depth, by_name)
        fields.append(f"{literal(name)}, {field}")
    return f"if({value} is null, null, named_struct({', '.join(fields)}))"


def split_field(part: str) -> tuple[str, str]:
    """Return the name and the type of a field, as a struct's type has them."""
    # A name may have a colon in it, a type has them in brackets only.
    *names, kind = split_type(part, ":")
    return ":".join(names), kind


def split_type(inner: str, separator: str) -> Iterator[str]:
    """Yield the parts of a type between separators that are in no brackets."""
    depth = start = 0
    for position, character in enumerate(inner):
        depth += (character in OPENING) - (character in CLOSING)
        if character == separator and depth == 0:
            yield inner[start:position]
            start = position + 1
    yield inner[start:]
