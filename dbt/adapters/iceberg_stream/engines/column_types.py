"""Spark SQL's names of the column types in Spark Connect's messages."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.connect.proto import DataType

# Those with parameters are below. The rest has the same name in messages and in SQL.
NAMES = {
    "null": "void",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "calendar_interval": "interval",
}
YEAR_MONTH = ("year", "month")
DAY_TIME = ("day", "hour", "minute", "second")
# Spark's defaults of parameters that a message leaves out.
PRECISION, SCALE, TIME_PRECISION = 10, 0, 6
BINARY_COLLATION = "UTF8_BINARY"


def sql_type(data_type: DataType) -> str:
    """Return Spark SQL's name of a type, as `DataType.simpleString` of pyspark does.

    Args:
        data_type: the type, as a message.
    """
    kind = data_type.WhichOneof("kind") or ""
    value = getattr(data_type, kind)
    match kind:
        case "decimal":
            precision = value.precision if value.HasField("precision") else PRECISION
            return f"decimal({precision},{value.scale if value.HasField('scale') else SCALE})"
        case "string":
            is_binary = value.collation in ("", BINARY_COLLATION)
            return "string" if is_binary else f"string collate {value.collation}"
        case "char":
            return f"char({value.length})"
        case "var_char":
            return f"varchar({value.length})"
        case "time":
            return f"time({value.precision if value.HasField('precision') else TIME_PRECISION})"
        case "year_month_interval":
            return _interval(value, YEAR_MONTH)
        case "day_time_interval":
            return _interval(value, DAY_TIME)
        case "array":
            return f"array<{sql_type(value.element_type)}>"
        case "map":
            return f"map<{sql_type(value.key_type)},{sql_type(value.value_type)}>"
        case "struct":
            fields = (f"{field.name}:{sql_type(field.data_type)}" for field in value.fields)
            return f"struct<{','.join(fields)}>"
        case "udt":
            return "udt"
        case "geometry" | "geography":
            return f"{kind}({'any' if value.srid == -1 else value.srid})"
        case "unparsed":
            return str(value.data_type_string)
    return NAMES.get(kind, kind)


def _interval(
    value: DataType.YearMonthInterval | DataType.DayTimeInterval, units: tuple[str, ...]
) -> str:
    first = value.start_field if value.HasField("start_field") else 0
    last = value.end_field if value.HasField("end_field") else len(units) - 1
    text = units[first] if first == last else f"{units[first]} to {units[last]}"
    return f"interval {text}"


def nested_types(data_type: DataType) -> Iterator[DataType]:
    """Yield a type and all types that it consists of.

    Args:
        data_type: the type, as a message.
    """
    yield data_type
    match data_type.WhichOneof("kind"):
        case "struct":
            children = [field.data_type for field in data_type.struct.fields]
        case "array":
            children = [data_type.array.element_type]
        case "map":
            children = [data_type.map.key_type, data_type.map.value_type]
        case _:
            children = []
    for child in children:
        yield from nested_types(child)
