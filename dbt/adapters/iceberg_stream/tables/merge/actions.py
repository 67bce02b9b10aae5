"""What becomes of rows in a merge. Worker code: the standard library only."""

from __future__ import annotations

from enum import Enum


class Deletes(str, Enum):
    """Which rows of the table a merge deletes."""

    NONE = "none"
    MATCHED = "matched"
    # Those for which the plan's condition holds, whatever their keys are.
    SATISFYING = "satisfying"
    UNMATCHED = "unmatched"
