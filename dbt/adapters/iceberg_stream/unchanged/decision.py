"""Decides whether a model must be built again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.unchanged.record import (
    FULL,
    INCREMENTAL,
    NEVER_BUILT,
    BuildRecord,
    is_as_left,
)

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.catalog.metadata import Metadata
    from dbt.adapters.iceberg_stream.unchanged.inputs import Inputs


@dataclass(frozen=True)
class Model:
    """A model as this run would build it.

    Attributes:
        config: its config.
        strategy: its incremental strategy.
        code: its code; empty if its query contains other models' code.
        macros: texts of the project's macros that it uses, by id.
        query: its compiled query.
        own: the names that statements have for its relation, published and staged.
        is_view: whether it becomes a view.
        reads_own: whether it reads its own table.
    """

    config: Mapping[str, Any]
    strategy: str
    code: str
    macros: Mapping[str, str]
    query: str
    own: Collection[tuple[str, ...]]
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
    from dbt.adapters.iceberg_stream.unchanged.increments import (
        is_repeatable,
        only_restricts,
        overwrites_by_key,
    )

    is_same = record.query == last.query
    if record.mode == last.mode and not is_same:
        return "its compiled query changed"
    if record.mode == FULL:
        return None if last.mode == FULL else "its last build was an increment"
    if is_same and is_repeatable(model.config, model.strategy) and not model.reads_own:
        return None
    if last.mode == INCREMENTAL:
        changed = "its last increment changed rows, and another one may, too"
        return changed if last.changed_rows else None
    # The table has all rows of the model.
    if overwrites_by_key(model.config, model.strategy) and only_restricts(
        model.code, model.macros, model.query, model.own
    ):
        return None
    return "it was not built as an increment yet"
