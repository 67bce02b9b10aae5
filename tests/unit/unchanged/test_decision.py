"""Which models are built again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dbt.adapters.iceberg_stream.unchanged.decision import Model, reason_to_build
from dbt.adapters.iceberg_stream.unchanged.inputs import Inputs, schema_digest
from dbt.adapters.iceberg_stream.unchanged.record import (
    FULL,
    INCREMENTAL,
    NEVER_BUILT,
    BuildRecord,
    definition_digest,
)

SQL = "select id from s.raw"
INCREMENT = "select id from s.raw where id > (select max(id) from s.t)"
MODEL = Model({"unique_key": "id"}, "merge", is_view=False, reads_own=False)
READING_OWN = replace(MODEL, reads_own=True)
FIELD = {"id": 1, "name": "id", "type": "long", "required": False}
TABLE = {
    "current-snapshot-id": 5,
    "current-schema-id": 0,
    "schemas": [{"schema-id": 0, "fields": [FIELD]}],
    "snapshots": [{"snapshot-id": 5, "summary": {"operation": "append"}}],
}
VIEW = {
    "current-version-id": 1,
    "versions": [
        {
            "version-id": 1,
            "schema-id": 0,
            "representations": [{"type": "sql", "sql": SQL, "dialect": "spark"}],
        }
    ],
    "schemas": TABLE["schemas"],
}
INPUTS = Inputs({"s.raw": ((7,), "columns")}, "views")


def record(mode: str = FULL, query: str = SQL, **values: Any) -> BuildRecord:
    given = {
        "code": {"its config": "a"},
        "mode": mode,
        "query": definition_digest(query),
        "inputs": INPUTS.as_json(),
        "snapshot_id": 5,
        "built_at": "2026-11-24T09:00:00+00:00",
        "schema": schema_digest(TABLE),
        **values,
    }
    return BuildRecord(**given)


@pytest.mark.parametrize(
    ("model", "last", "now", "reason"),
    [
        (MODEL, record(), record(), None),
        (MODEL, None, record(), NEVER_BUILT),
        (MODEL, record(code={"its config": "b"}), record(), "its config changed"),
        (MODEL, record(query="select 2"), record(), "its compiled query changed"),
        (MODEL, record(snapshot_id=4), record(), "another writer has changed it"),
        (MODEL, record(schema="other"), record(), "another writer has changed it"),
        (MODEL, record(INCREMENTAL), record(), "its last build was an increment"),
        # An increment after all rows: they may have a key twice.
        (MODEL, record(), record(INCREMENTAL), "its last build was no increment"),
        (READING_OWN, record(), record(INCREMENTAL, INCREMENT), "its last build was no increment"),
        # An increment after an increment.
        (MODEL, record(INCREMENTAL), record(INCREMENTAL), None),
        (
            READING_OWN,
            record(INCREMENTAL, INCREMENT),
            record(INCREMENTAL, INCREMENT),
            "its last increment changed rows, and another one may, too",
        ),
        (
            READING_OWN,
            record(INCREMENTAL, INCREMENT, changed_rows=False),
            record(INCREMENTAL, INCREMENT),
            None,
        ),
        (
            replace(MODEL, strategy="append"),
            record(INCREMENTAL),
            record(INCREMENTAL),
            "its last increment changed rows, and another one may, too",
        ),
        (
            replace(MODEL, config={"unique_key": "id", "matched_condition": "t.a < s.a"}),
            record(INCREMENTAL),
            record(INCREMENTAL),
            "its last increment changed rows, and another one may, too",
        ),
        (
            replace(MODEL, strategy="insert_overwrite"),
            record(INCREMENTAL),
            record(INCREMENTAL),
            None,
        ),
        (
            replace(READING_OWN, strategy="insert_overwrite"),
            record(INCREMENTAL, INCREMENT),
            record(INCREMENTAL, INCREMENT),
            "its last increment changed rows, and another one may, too",
        ),
    ],
)
def test_tables(
    model: Model, last: BuildRecord | None, now: BuildRecord, reason: str | None
) -> None:
    assert reason_to_build(model, TABLE, last, now, INPUTS) == reason


def test_a_table_that_was_dropped() -> None:
    assert reason_to_build(MODEL, None, record(), record(), INPUTS) == "it does not exist"


def test_views() -> None:
    model = replace(MODEL, is_view=True)
    other_rows = Inputs({"s.raw": ((8,), "columns")}, "views")
    assert reason_to_build(model, VIEW, record(), record(), other_rows) is None
    assert reason_to_build(model, TABLE, record(), record(), INPUTS) == NEVER_BUILT
    assert reason_to_build(MODEL, VIEW, record(), record(), INPUTS) == NEVER_BUILT
    # Whoever reads the view in this run must read what the run has staged.
    staged = replace(other_rows, reads_staged=True)
    assert reason_to_build(model, VIEW, record(), record(), staged) == (
        "it reads relations that this run has staged"
    )
