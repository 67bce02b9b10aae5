"""dbt's adapter response, with the outcome of a write."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dbt.adapters.contracts.connection import AdapterResponse

from dbt.adapters.iceberg_stream.catalog.catalogs import QualifiedName
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome


@dataclass
class IcebergStreamResponse(AdapterResponse):
    """The outcome of a statement; its numbers come from the committed snapshot's summary."""

    snapshot_id: int | None = None
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None
    files_added: int | None = None
    files_removed: int | None = None
    bytes_written: int | None = None
    total_delete_files: int | None = None
    rows_before: int | None = None
    rows_after: int | None = None
    relation: str | None = None
    branch: str | None = None
    merge_engine: str | None = None
    merge_engine_reason: str | None = None
    from_cache: bool | None = None
    # For the adapter's own use: what the numbers above were read from.
    outcome: Outcome | None = field(default=None, metadata={"serialize": "omit"})
    # For the adapter's own use, too: the relation that the statement changed.
    target: QualifiedName | None = field(default=None, metadata={"serialize": "omit"})

    @classmethod
    def of(
        cls, outcome: Outcome, verb: str, relation: str | None, **further: Any
    ) -> IcebergStreamResponse:
        """Return the response for a committed snapshot, such as `MERGE 1,000 rows`.

        Args:
            outcome: the write's outcome.
            verb: the statement's verb, in upper case.
            relation: name of the changed relation.
            further: other fields of the response.
        """
        numbers = asdict(outcome)
        del numbers["operation"], numbers["timestamp_ms"]
        message = f"{verb} {outcome.rows_affected:,} rows"
        return cls(message, code=verb, relation=relation, outcome=outcome, **numbers, **further)

    def copy_merge_engine(self, other: IcebergStreamResponse) -> None:
        """Report which engine merged, and why it was that one, as another response does."""
        self.merge_engine, self.merge_engine_reason = other.merge_engine, other.merge_engine_reason
