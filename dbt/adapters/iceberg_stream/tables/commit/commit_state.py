"""Finds out from the table whether a write with an unknown commit state was committed."""

from __future__ import annotations

import time
from collections.abc import Callable

from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
from dbt.adapters.iceberg_stream.errors.spark import COMMIT_STATE_UNKNOWN, StatementError
from dbt.adapters.iceberg_stream.tables.commit.outcome import Outcome
from dbt.adapters.iceberg_stream.tables.commit.snapshot_properties import WRITE_ID

# Seconds before each check: after a gateway's time-out the commit may still be running.
PAUSES = (0.0, 1.0, 2.0, 2.0)


def resolve(error: StatementError, find: Callable[[], Outcome | None], write_id: str) -> Outcome:
    """Return the outcome of a write that was committed although its statement failed.

    Args:
        error: the statement's error.
        find: returns the write's outcome, read from the table; None if it has none.
        write_id: the id in the snapshot's properties.

    Raises:
        StatementError: the write was not committed, or its state stays unknown; the message says
            which.
    """
    cause = str(error).split(COMMIT_STATE_UNKNOWN)[0].strip()
    try:
        for pause in PAUSES:
            time.sleep(pause)
            outcome = find()
            if outcome is not None:
                return outcome
    except CatalogError as unknown:
        raise StatementError(
            f"{cause}\nThe commit state is unknown. {unknown}\nWhen the catalog answers again, "
            f"look for a snapshot whose summary has {WRITE_ID} = {write_id}. If there is one, the "
            "write is complete. If not, run the model again.",
            engine_gone=error.engine_gone,
        ) from error
    if error.engine_gone:
        raise StatementError(
            f"{cause}\nThe table has no snapshot of this write so far. If the server is running, "
            "it may still execute the statement: the next command of this project cancels it. "
            "Then run the model again.",
            engine_gone=True,
            not_committed=True,
        ) from error
    raise StatementError(
        f"{cause}\nThe table has no snapshot of this write so far: nothing of it is visible. If "
        "the model appends rows, look once more before you run it again, because a late commit "
        f"would add them twice: its snapshot has {WRITE_ID} = {write_id} in its summary. Then run "
        "the model again. `iceberg-stream orphans` finds files that the write has left behind."
    ) from error
