"""A stream of the changes of a table, and the table that it keeps equal."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.engines.session import Session, as_rows
from dbt.adapters.iceberg_stream.stream.sources.iceberg.source import IcebergSource
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier


@dataclass
class Replica:
    """What a reader of a table's changes has, by the first column."""

    lake: IcebergCatalog
    spark: Session
    name: str
    changes: bool = True
    rows: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    frontier: Frontier | None = None

    @property
    def source(self) -> IcebergSource:
        relation = f"`lake`.`s`.`{self.name}`"
        return IcebergSource(self.lake, ("s", self.name), relation, changes=self.changes)

    def read(self) -> list[dict[str, Any]]:
        """Take in what is new; the changes, in their order."""
        taken = []
        while (upper := self.source.plan_batch(self.frontier, 1000)) is not None:
            frame = self.source.read(self.spark.spark, self.frontier, upper)
            actual = self.spark.rows("select * from v", v=frame).to_pylist()
            actual.sort(key=lambda row: (row["__stream"]["major"], row["__stream"]["minor"]))
            for row in actual:
                self._apply(dict(row))
            taken += actual
            self.frontier = upper
        return taken

    def _apply(self, row: dict[str, Any]) -> None:
        change = row.pop("__stream")
        values = tuple(row.values())
        if change["deleted"]:
            self.rows.pop(values[0], None)
        else:
            self.rows[values[0]] = values

    def expect_the_table(self) -> None:
        rows = as_rows(self.spark.query(f"select * from lake.s.{self.name}"))
        assert sorted(self.rows.values(), key=repr) == sorted(rows, key=repr)


def new_name() -> str:
    return f"t{uuid.uuid4().hex[:8]}"
