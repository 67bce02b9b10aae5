"""Schemas and partition specs of a table's whole history."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from pydantic import ValidationError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.types import IcebergType, NestedField, UnknownType

from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
from dbt.adapters.iceberg_stream.maintenance.check.finding import Finding
from dbt.adapters.iceberg_stream.maintenance.check.metadata import all_fields

# Higher ids are those of metadata columns.
HIGHEST_ID = 2**31 - 1 - 200
FIRST_PARTITION_ID = 1000
# What PyIceberg raises for types and defaults that it does not know, beside its own errors.
REFUSALS = (ValueError, TypeError, AttributeError, NotImplementedError)


class TableSchemas:
    """A table's schemas and partition specs.

    Attributes:
        problems: findings about schemas that cannot be parsed.
        specs: partition specs by id.
        ids: of all fields, those of unsupported schemas included.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.problems: list[Finding] = []
        self.specs: Mapping[int, PartitionSpec] = {
            spec["spec-id"]: PartitionSpec.model_validate(_with_ids(spec))
            for spec in metadata.get("partition-specs") or []
        }
        self._schemas = {s.schema_id: s for s in self._parsed(metadata.get("schemas") or [])}
        self._current_id: int = metadata.get("current-schema-id", 0)
        self.ids = {f["id"] for s in metadata.get("schemas") or [] for f in all_fields(s)}

    def of(self, ref: str) -> TableSchemas:
        """Return the schemas as a branch or tag is read: a tag has the schema of its snapshot.

        Args:
            ref: the branch or tag.
        """
        reference = (self._metadata.get("refs") or {}).get(ref, {})
        snapshot: Mapping[str, Any] = next(
            (
                s
                for s in self._metadata.get("snapshots") or []
                if s["snapshot-id"] == reference.get("snapshot-id")
            ),
            {},
        )
        schema_id: int | None = snapshot.get("schema-id")
        if str(reference.get("type")).lower() != "tag" or schema_id is None:
            return self
        view = copy.copy(self)
        view._current_id = schema_id
        view.__dict__.pop("fields", None)
        return view

    def _parsed(self, schemas: list[dict[str, Any]]) -> Iterator[Schema]:
        for schema in schemas:
            try:
                yield Schema.model_validate(schema)
            except (ValidationError, *REFUSALS) as error:
                reason = str(error).splitlines()[0]
                self.problems.append(
                    Finding(
                        "not-checked",
                        f"schema {schema.get('schema-id')}",
                        f"Its types are not supported here ({reason}): files are not compared "
                        "with it.",
                    )
                )

    @property
    def is_complete(self) -> bool:
        """Whether no schema of the table was removed.

        Ids of removed schemas are given again, so their columns and the snapshots count, too.
        """
        metadata = self._metadata
        ids = sorted(s.get("schema-id") or 0 for s in metadata.get("schemas") or [])
        has_expired = metadata.get("last-sequence-number", 0) > len(metadata.get("snapshots") or [])
        has_all_columns = self.ids.issuperset(range(1, metadata.get("last-column-id", 0) + 1))
        return ids == list(range(len(ids))) and has_all_columns and not has_expired

    @property
    def current(self) -> Schema | None:
        """The table's current schema; None if it has unsupported types."""
        return self._schemas.get(self._current_id)

    @property
    def current_json(self) -> Mapping[str, Any] | None:
        """The current schema as JSON."""
        return next(
            (
                schema
                for schema in self._metadata.get("schemas") or []
                if (schema.get("schema-id") or 0) == self._current_id
            ),
            None,
        )

    @cached_property
    def fields(self) -> Mapping[int, NestedField]:
        """The newest definition of every field that the table has or had, by id."""
        merged: dict[int, NestedField] = {}
        ordered = sorted(self._schemas.values(), key=lambda s: s.schema_id)
        for schema in (*ordered, self.current):
            if schema is not None:
                merged |= index_by_id(schema)
        return {number: field for number, field in merged.items() if number <= HIGHEST_ID}

    def partition_types(self, spec_id: int) -> list[IcebergType]:
        """Return the result types of a partition spec; `unknown` for unsupported columns.

        Args:
            spec_id: the spec's id.
        """
        spec = self.specs.get(spec_id)
        types: list[IcebergType] = []
        for field in spec.fields if spec else ():
            source = self.fields.get(field.source_id)
            types.append(
                UnknownType() if source is None else field.transform.result_type(source.field_type)
            )
        return types


def _with_ids(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a partition spec whose fields have ids, which they need not have in version 1.

    They are given in the order of the fields (spec, "Partition Specs").
    """
    fields = enumerate(spec.get("fields") or [], FIRST_PARTITION_ID)
    return {**spec, "fields": [{"field-id": number, **field} for number, field in fields]}
