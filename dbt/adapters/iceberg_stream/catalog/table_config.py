"""A model's table layout: parsed from its config, compared with the table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import Metadata, current, field_names
from dbt.adapters.iceberg_stream.errors.wrong_values import must_be, must_be_one_of
from dbt.adapters.iceberg_stream.sql.quoting import literal, quote

TRANSFORMS = ("identity", "year", "month", "day", "hour", "bucket", "truncate")
COLUMN = r"(?:`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z_][\w.]*))"
CALL = re.compile(
    rf"^\s*(?P<name>[a-z_]+)\s*\(\s*(?:(?P<first>\d+)\s*,\s*)?{COLUMN}\s*(?:,\s*(?P<last>\d+)\s*)?\)\s*$",
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
VOID = "void"
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

    def value_sql(self, alias: str, catalog: str) -> str:
        """Return an expression of the term's value, by Iceberg's functions in Spark.

        Args:
            alias: of the relation that has the column.
            catalog: a catalog in Spark that has these functions.
        """
        column = ".".join(quote(part) for part in (alias, *self.column.split(".")))
        if self.transform == "identity":
            return column
        if self.width is not None:
            return f"{quote(catalog)}.system.{self.transform}({self.width}, {column})"
        return f"{quote(catalog)}.system.{self.transform}s({column})"

    @property
    def spec_name(self) -> str:
        """The transform as table metadata spells it."""
        return self.transform if self.width is None else f"{self.transform}[{self.width}]"

    def require_free_name(self, columns: Collection[str], added: bool = False) -> None:
        """Check that no column has the name that Iceberg gives the term's partition field.

        Args:
            columns: the table's.
            added: whether the field is added to a table that exists.

        Raises:
            CatalogError: a column has it.
        """
        name = self._field_name(added)
        if self.transform != "identity" and name.lower() in map(str.lower, columns):
            raise CatalogError(
                f"`partition_by` has {self.sql}: Iceberg names its partition field `{name}`, but "
                "the table has a column of this name. Nothing was changed. Rename the column, or "
                "partition by another one."
            )

    def _field_name(self, added: bool) -> str:
        """Return the name that Iceberg gives the term's partition field."""
        if self.transform == "identity":
            return self.column
        suffix = "trunc" if self.transform == "truncate" else self.transform
        width = f"_{self.width}" if added and self.width is not None else ""
        return f"{self.column}_{suffix}{width}"

    def name_in_other_letters(self, names: Iterable[str], added: bool = False) -> str | None:
        """Return a name that differs from that of the term's partition field only in case.

        Args:
            names: of partition fields. Spark cannot read a table with two such names.
            added: as for `require_free_name`.
        """
        new = self._field_name(added)
        return next((name for name in names if name != new and name.lower() == new.lower()), None)


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

    def spelled(self, names: Iterable[str]) -> TableConfig:
        """Return the layout with columns in the letter case that they have.

        Args:
            names: the columns.
        """
        spelling = {name.lower(): name for name in names}

        def spell(term: Term) -> Term:
            head, _, rest = term.column.partition(".")
            nested = f"{spelling.get(head.lower(), head)}.{rest}" if rest else head
            return replace(term, column=spelling.get(term.column.lower(), nested))

        partition_by, sort_order = self.partition_by, self.sort_order
        return replace(
            self,
            partition_by=None if partition_by is None else tuple(map(spell, partition_by)),
            sort_order=None
            if sort_order is None
            else tuple(replace(field, term=spell(field.term)) for field in sort_order),
        )

    def alterations(self, name: Sequence[str], metadata: Metadata) -> list[str]:
        """Return the `alter table` clauses that give an existing table this layout.

        Args:
            name: of the table, for errors.
            metadata: of the table.

        Raises:
            CatalogError: a new partition field is of a column that the table does not have, or
                that cannot have its transform. Checked here, because the clauses are run one by
                one.
        """
        return self.spelled(field_names(metadata).values())._alterations(name, metadata)

    def without_columns(self, columns: Sequence[str]) -> TableConfig:
        """Return the layout without the partition fields of some columns."""
        if not columns:
            return self
        kept = [t for t in self.partition_by or () if t.column.split(".")[0] not in columns]
        return replace(self, partition_by=tuple(kept))

    def require_free_names(
        self, columns: Collection[str], replaced: Metadata | None = None
    ) -> None:
        """Check that the names of a new table's partition fields are free.

        Args:
            columns: the table's.
            replaced: the table that it replaces, whose partition specs stay; None for none.

        Raises:
            CatalogError: a column has such a name, or an earlier field has it in another case.
        """
        specs = [] if replaced is None else replaced.get("partition-specs") or []
        earlier = [field["name"] for spec in specs for field in spec["fields"]]
        for term in self.partition_by or ():
            term.require_free_name(columns)
            if name := term.name_in_other_letters(earlier):
                raise CatalogError(
                    f"`partition_by` has {term.sql}, and the table's history has the partition "
                    f"field `{name}`, whose name differs only in case: Spark could not read the "
                    "table. Nothing was changed. Rename the column, or drop the table first."
                )

    def missing_columns(self, names: Iterable[str]) -> list[str]:
        """Return the columns of partition fields that are not among others.

        Args:
            names: the other columns.
        """
        known = {name.lower() for name in names}
        heads = [term.column.split(".")[0] for term in self.partition_by or ()]
        return [name for name in heads if name.lower() not in known]

    def _alterations(self, name: Sequence[str], metadata: Metadata) -> list[str]:
        clauses = [*self._partition_changes(name, metadata)]
        if self.sort_order is not None and self.sort_order != _sort_order(metadata):
            clauses.append(self.write_order)
        changed = {k: v for k, v in self.properties.items() if _property(metadata, k) != v}
        if changed:
            clauses.append(f"set tblproperties ({properties_sql(changed)})")
        if self.location and self.location.rstrip("/") != metadata["location"].rstrip("/"):
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

    def _partition_changes(self, name: Sequence[str], metadata: Metadata) -> list[str]:
        if self.partition_by is None:
            return []
        # Format version 1 keeps dropped fields as `void` (spec, "Partition Evolution").
        terms = partition_terms(metadata)
        if terms == list(self.partition_by):
            return []
        dropped = [t for t in terms if t not in self.partition_by]
        added = [t for t in self.partition_by if t not in terms]
        for term in added:
            _require_partitionable(name, metadata, term)
            if not _name_clause(metadata, term, dropped):
                term.require_free_name(field_names(metadata).values(), added=True)
        return [
            *(f"drop partition field {t.sql}" for t in dropped),
            *(f"add partition field {t.sql}{_name_clause(metadata, t, dropped)}" for t in added),
        ]


def _name_clause(metadata: Metadata, term: Term, dropped: Sequence[Term]) -> str:
    """Return a name for a new partition field if Iceberg's own choice makes the table unreadable.

    Spark reads no table with two fields whose names differ only in case, or of a spec that has an
    id twice. Since format version 2, Iceberg gives a new field the id of an earlier one with the
    same source and transform, unless it has another name; format version 1 has left such ids in
    `void` fields of the current spec.
    """
    columns = field_names(metadata)
    fields = [field for spec in metadata["partition-specs"] for field in spec["fields"]]
    recycled = {field["field-id"] for field in fields if _as_term(columns, field) == term}
    spec = current(metadata, "partition-specs")
    kept = {f["field-id"] for f in spec["fields"] if _as_term(columns, f) not in dropped}
    takes_id = metadata["format-version"] >= 2 and recycled & kept
    if not takes_id and not term.name_in_other_letters((f["name"] for f in fields), added=True):
        return ""
    taken = {name.lower() for name in (*columns.values(), *(f["name"] for f in fields))}
    names = (f"{term.column}_{term.transform}_{number}" for number in itertools.count(2))
    return f" as {quote(next(name for name in names if name.lower() not in taken))}"


def _require_partitionable(name: Sequence[str], metadata: Metadata, term: Term) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform

    from dbt.adapters.iceberg_stream.catalog.variant_type import repair

    repair()
    schema = Schema.model_validate(current(metadata, "schemas"))
    table, columns = ".".join(name), ", ".join(f"`{field.name}`" for field in schema.fields)
    if term.column not in schema.column_names:
        raise CatalogError(
            f"`partition_by` names `{term.column}`, which {table} does not have. It has {columns}. "
            "Nothing was changed. Correct `partition_by`."
        )
    kind = schema.find_type(term.column)
    if not parse_transform(term.spec_name).can_transform(kind):
        raise CatalogError(
            f"`partition_by` has {term.sql}, but `{term.column}` of {table} is {kind}, which has "
            f"no transform {term.transform}. Nothing was changed. Correct `partition_by`."
        )


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
    if merge_mode == "merge-on-read" and properties.get("format-version") == "1":
        errors.append(
            "`merge_mode: merge-on-read` needs delete files, which `format_version: 1` does not "
            "have. Set `format_version` to 2 or 3, or remove `merge_mode`"
        )
    return properties


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def partition_terms(metadata: Metadata) -> list[Term]:
    """Return the terms by which a table is partitioned now, without fields that were dropped.

    Args:
        metadata: of the table.
    """
    columns, spec = field_names(metadata), current(metadata, "partition-specs")
    return [_as_term(columns, field) for field in spec["fields"] if field["transform"] != VOID]


def _as_term(columns: Mapping[int, str], of_field: Mapping[str, Any]) -> Term:
    """Return the term of a partition or sort field."""
    column, transform = columns.get(of_field["source-id"], ""), of_field["transform"]
    match = re.fullmatch(r"(\w+)\[(\d+)\]", transform)
    return Term(match[1], column, int(match[2])) if match else Term(transform, column)


def _sort_order(metadata: Metadata) -> tuple[SortField, ...]:
    columns = field_names(metadata)
    return tuple(
        SortField(
            _as_term(columns, item),
            item["direction"] == "desc",
            item["null-order"] == "nulls-first",
        )
        for item in current(metadata, "sort-orders")["fields"]
    )


def _property(metadata: Metadata, key: str) -> str | None:
    if key == "format-version":
        return str(metadata["format-version"])
    value: str | None = (metadata.get("properties") or {}).get(key)
    return value
