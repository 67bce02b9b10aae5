"""Decides whether a model must be built again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.unchanged.record import (
    FULL,
    NEVER_BUILT,
    BuildRecord,
    is_as_left,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
    from dbt.adapters.iceberg_stream.unchanged.inputs import Inputs

# Configs with which a merge of rows that a table has already may change it.
CONDITIONS = (
    *("incremental_predicates", "predicates", "matched_condition", "not_matched_condition"),
    *("not_matched_by_source_action", "not_matched_by_source_condition"),
    *("skip_matched_step", "skip_not_matched_step"),
)


@dataclass(frozen=True)
class Model:
    """A model as this run would build it.

    Attributes:
        config: its config.
        strategy: its incremental strategy.
        is_view: whether it becomes a view.
        reads_own: whether it reads its own table.
    """

    config: Mapping[str, Any]
    strategy: str
    is_view: bool
    reads_own: bool


def reason_to_build(
    model: Model,
    metadata: Metadata | None,
    last: BuildRecord | None,
    record: BuildRecord,
    inputs: Inputs,
) -> str | None:
    """Return why a model must be built again; None if it need not.

    Args:
        model: the model.
        metadata: of its relation; None if it does not exist.
        last: record of its last build; None without one.
        record: record that a build would leave now.
        inputs: what it reads now.
    """
    if metadata is None:
        return "it does not exist"
    if last is None or ("versions" in metadata) != model.is_view:
        return NEVER_BUILT
    if model.is_view and inputs.reads_staged:
        return "it reads relations that this run has staged"
    if change := last.change_to(record, inputs, with_rows=not model.is_view):
        return change
    if change := _change_of_query(model, last, record):
        return change
    return None if is_as_left(metadata, last) else "another writer has changed it"


def _change_of_query(model: Model, last: BuildRecord, record: BuildRecord) -> str | None:
    """Return why a model's query may change its table; None if it does not."""
    if record.mode != last.mode:
        # An increment may change a table that has all rows, by keys that it has twice.
        is_full = record.mode == FULL
        return f"its last build was {'an increment' if is_full else 'no increment'}"
    if record.query != last.query:
        return "its compiled query changed"
    if record.mode == FULL or not last.changed_rows:
        return None
    if not model.reads_own and _is_repeatable(model.config, model.strategy):
        return None
    return "its last increment changed rows, and another one may, too"


def _is_repeatable(config: Mapping[str, Any], strategy: str) -> bool:
    """Return whether an increment of the same rows as the last one leaves the table as it is."""
    if strategy in ("merge", "delete+insert"):
        return bool(config.get("unique_key")) and not any(map(config.get, CONDITIONS))
    return strategy == "insert_overwrite"
