"""A model's table layout: parsed from its config, compared with the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.errors.wrong_values import must_be, must_be_one_of
from dbt.adapters.iceberg_stream.sql.quoting import literal

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField as IcebergPartitionField
    from pyiceberg.table import Table

TRANSFORMS = ("identity", "year", "month", "day", "hour", "bucket", "truncate")
COLUMN = r"(?:`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z_][\w.]*))"
CALL = re.compile(
    rf"^\s*(?P<name>[a-z]+)\s*\(\s*(?:(?P<first>\d+)\s*,\s*)?{COLUMN}\s*(?:,\s*(?P<last>\d+)\s*)?\)\s*$",
    re.IGNORECASE,
)
BARE = re.compile(rf"^\s*{COLUMN}\s*$")
SORT = re.compile(
    r"^\s*(?P<term>.+?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*$",
    re.IGNORECASE,
)
SIZE = re.compile(r"^\s*(\d+)\s*(kb|mb|gb)?\s*$", re.IGNORECASE)
UNITS = {None: 1, "kb": 2**10, "mb": 2**20, "gb": 2**30}
MERGE_MODES = ("copy-on-write", "merge-on-read")
DISTRIBUTIONS = ("none", "hash", "range")


@dataclass(frozen=True)
class Term:
    """A partition or sort term: a transform of a column (spec, "Partition Transforms")."""

    transform: str
    column: str
    width: int | None = None

    @property
    def sql(self) -> str:
        """The term as Spark SQL."""
        column = ".".join(f"`{part}`" for part in self.column.split("."))
        if self.transform == "identity":
            return column
        if self.width is not None:
            return f"{self.transform}({self.width}, {column})"
        return f"{self.transform}s({column})"

    @property
    def spec_name(self) -> str:
        """The transform as table metadata spells it."""
        return self.transform if self.width is None else f"{self.transform}[{self.width}]"


@dataclass(frozen=True)
class SortField:
    """One field of a sort order."""

    term: Term
    descending: bool
    nulls_first: bool

    @property
    def sql(self) -> str:
        """The field as Spark SQL."""
        direction = "desc" if self.descending else "asc"
        return f"{self.term.sql} {direction} nulls {'first' if self.nulls_first else 'last'}"


@dataclass(frozen=True)
class TableConfig:
    """Layout of a table; None where the model configures nothing.

    Attributes:
        partition_by: partition transforms, in order.
        sort_order: sort fields, in order.
        properties: table properties.
        location: URI or path of the table's folder.
    """

    partition_by: tuple[Term, ...] | None = None
    sort_order: tuple[SortField, ...] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    location: str | None = None

    @property
    def is_default(self) -> bool:
        """Return whether the model configures no layout."""
        return self == TableConfig()

    def alterations(self, table: Table) -> list[str]:
        """Return the `alter table` clauses that give an existing table this layout."""
        clauses = [*self._partition_changes(table)]
        if self.sort_order is not None and self.sort_order != _sort_order(table):
            clauses.append(self.write_order)
        changed = {k: v for k, v in self.properties.items() if _property(table, k) != v}
        if changed:
            clauses.append(f"set tblproperties ({properties_sql(changed)})")
        if self.location and self.location.rstrip("/") != table.location().rstrip("/"):
            clauses.append(f"set location {literal(self.location)}")
        return clauses

    @property
    def create_clauses(self) -> str:
        """The clauses of `create table` between the name and `as`."""
        clauses = []
        if self.partition_by:
            clauses.append(f"partitioned by ({', '.join(t.sql for t in self.partition_by)})")
        if self.location:
            clauses.append(f"location {literal(self.location)}")
        if self.properties:
            clauses.append(f"tblproperties ({properties_sql(self.properties)})")
        return "\n".join(clauses)

    @property
    def select_order(self) -> str:
        """An `order by` list for the first write, which has no table with a sort order yet.

        Rows of a partitioned table are sent to their partitions after any order.
        """
        fields = self.sort_order or ()
        if self.partition_by or any(f.term.transform != "identity" for f in fields):
            return ""
        return ", ".join(field.sql for field in fields)

    @property
    def write_order(self) -> str:
        """The `alter table` clause that sets the sort order, and with it the distribution."""
        order = ", ".join(item.sql for item in self.sort_order or ())
        if not order:
            return "write unordered"
        distribution = self.properties.get("write.distribution-mode", "range")
        distributions = {"none": "locally ", "hash": "distributed by partition locally "}
        return f"write {distributions.get(distribution, '')}ordered by {order}"

    def _partition_changes(self, table: Table) -> list[str]:
        if self.partition_by is None:
            return []
        current = [_as_term(table, f) for f in table.spec().fields]
        if current == list(self.partition_by):
            return []
        dropped = [t for t in current if t not in self.partition_by]
        added = [t for t in self.partition_by if t not in current]
        return [
            *(f"drop partition field {t.sql}" for t in dropped),
            *(f"add partition field {t.sql}" for t in added),
        ]


def parse_table_config(config: Mapping[str, Any]) -> tuple[TableConfig, list[str]]:
    """Parse a model's layout config.

    Args:
        config: the model's config.

    Returns:
        The layout, and a message for each error in the config.
    """
    errors: list[str] = []
    partition_by = _terms(config.get("partition_by"), errors)
    sort_order = _sort_fields(config.get("sort_order"), errors)
    properties = _properties(config, errors)
    location = config.get("location")
    if location is not None and not isinstance(location, str):
        errors.append(must_be("location", location, "a path or a URI"))
        location = None
    return TableConfig(partition_by, sort_order, properties, location), errors


def parse_term(text: str) -> Term | None:
    """Parse a partition or sort term: `days(ts)`, `bucket(16, id)`, `id`; None if it is invalid."""
    if match := BARE.match(text):
        return Term("identity", match["quoted"] or match["plain"])
    if not (match := CALL.match(text)):
        return None
    name = match["name"].lower()
    name = name[:-1] if name in ("years", "months", "days", "hours") else name
    name = {"date": "day", "date_hour": "hour"}.get(name, name)
    width = match["first"] or match["last"]
    needs_width = name in ("bucket", "truncate")
    if name not in TRANSFORMS or needs_width != (width is not None):
        return None
    return Term(name, match["quoted"] or match["plain"], int(width) if width else None)


def properties_sql(properties: Mapping[str, str]) -> str:
    """Return properties as Spark SQL, without the parentheses."""
    return ", ".join(f"{literal(k)} = {literal(v)}" for k, v in sorted(properties.items()))


def _terms(value: Any, errors: list[str]) -> tuple[Term, ...] | None:
    if value is None:
        return None
    terms = []
    for text in _as_list(value):
        term = parse_term(text) if isinstance(text, str) else None
        if term is None:
            errors.append(
                f"`partition_by: {text}` is neither a column nor a partition transform: use a "
                "column, year(c), month(c), day(c), hour(c), bucket(n, c) or truncate(n, c)"
            )
        else:
            terms.append(term)
    return tuple(terms)


def _sort_fields(value: Any, errors: list[str]) -> tuple[SortField, ...] | None:
    if value is None:
        return None
    fields = []
    for text in _as_list(value):
        match = SORT.match(text) if isinstance(text, str) else None
        term = parse_term(match["term"]) if match else None
        if match is None or term is None:
            errors.append(must_be("sort_order", text, "`column [asc|desc] [nulls first|last]`"))
            continue
        descending = (match["way"] or "asc").lower() == "desc"
        nulls = (match["nulls"] or ("last" if descending else "first")).lower()
        fields.append(SortField(term, descending, nulls == "first"))
    return tuple(fields)


def _properties(config: Mapping[str, Any], errors: list[str]) -> dict[str, str]:
    raw = config.get("table_properties") or {}
    if not isinstance(raw, Mapping):
        errors.append("`table_properties` must be a mapping of property names to values")
        raw = {}
    properties = {str(k): _text(v) for k, v in raw.items()}
    version = config.get("format_version")
    if version is not None:
        if str(version) in ("1", "2", "3"):
            properties["format-version"] = str(version)
        else:
            errors.append(must_be_one_of("format_version", version, (1, 2, 3)))
    size = config.get("target_file_size")
    if size is not None:
        if match := SIZE.match(str(size)):
            factor = UNITS[match[2].lower() if match[2] else None]
            properties["write.target-file-size-bytes"] = str(int(match[1]) * factor)
        else:
            errors.append(must_be("target_file_size", size, "bytes or a size such as 128mb"))
    distribution = config.get("distribution")
    if distribution is not None:
        if distribution in DISTRIBUTIONS:
            properties["write.distribution-mode"] = distribution
        else:
            errors.append(must_be_one_of("distribution", distribution, DISTRIBUTIONS))
    merge_mode = config.get("merge_mode")
    if merge_mode is not None:
        if merge_mode in MERGE_MODES:
            for operation in ("merge", "update", "delete"):
                properties.setdefault(f"write.{operation}.mode", merge_mode)
        else:
            errors.append(must_be_one_of("merge_mode", merge_mode, MERGE_MODES))
    return properties


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_term(table: Table, partition_field: IcebergPartitionField) -> Term:
    column = table.schema().find_column_name(partition_field.source_id) or ""
    return _term_of(column, str(partition_field.transform))


def _term_of(column: str, transform: str) -> Term:
    match = re.fullmatch(r"(\w+)\[(\d+)\]", transform)
    return Term(match[1], column, int(match[2])) if match else Term(transform, column)


def _sort_order(table: Table) -> tuple[SortField, ...]:
    return tuple(
        SortField(
            _term_of(table.schema().find_column_name(f.source_id) or "", str(f.transform)),
            f.direction.value == "desc",
            f.null_order.value == "nulls-first",
        )
        for f in table.sort_order().fields
    )


def _property(table: Table, key: str) -> str | None:
    if key == "format-version":
        return str(table.metadata.format_version)
    return table.properties.get(key)
