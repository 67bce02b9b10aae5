"""Names of branches in SQL, as Iceberg writes them: `catalog.namespace.table.branch_audit`."""

from __future__ import annotations

BRANCH_PREFIX = "branch_"


def split_branch(parts: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """Return the name of a table without its branch, and the branch; None for no branch.

    Only a name with a catalog may have a branch: with fewer parts, the last one may be a table.

    Args:
        parts: of the name, as in a statement.
    """
    if len(parts) == 4 and parts[-1].startswith(BRANCH_PREFIX):
        return parts[:-1], parts[-1].removeprefix(BRANCH_PREFIX)
    return parts, None
