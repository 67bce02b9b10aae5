"""What became of a write whose answer was lost: the table itself knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.catalog.metadata import SnapshotSummary
from dbt.adapters.iceberg_stream.errors.spark import LOST_ANSWER, StatementError
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome, find_outcome
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID

# Seconds before each look: a commit whose answer was lost at a gateway may still be under way.
PAUSES = (0.0, 1.0, 2.0, 2.0)


def resolve(
    error: StatementError, snapshots: Callable[[], Iterable[SnapshotSummary]], write_id: str
) -> Outcome:
    """The outcome of a write that failed with a lost answer but was committed.

    Raises:
        StatementError: it was not committed, or that cannot be known; says which.
    """
    cause = str(error).split(LOST_ANSWER)[0].strip()
    try:
        for pause in PAUSES:
            time.sleep(pause)
            outcome = find_outcome(snapshots(), write_id)
            if outcome is not None:
                return outcome
    except CatalogError as unknown:
        raise StatementError(
            f"{cause}\nWhether it was committed is not known. {unknown}\nIf it was, the table has "
            f"a snapshot whose summary says {WRITE_ID} = {write_id}.",
            engine_gone=error.engine_gone,
        ) from error
    if error.engine_gone:
        raise StatementError(
            f"{cause}\nThe table has no snapshot of this write so far. If the server lives, it may "
            "still run the statement: the next command of this project cancels it. Then run the "
            "model again.",
            engine_gone=True,
        ) from error
    raise StatementError(
        f"{cause}\nThe table has no snapshot of this write so far: nothing of it is visible. Run "
        "the model again; before an append, look whether a snapshot has come in the meantime whose "
        f"summary says {WRITE_ID} = {write_id}. Files of the write may be left over: "
        "remove_orphan_files removes them."
    ) from error
