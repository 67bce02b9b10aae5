"""Users who take turns at dbt in one process; a user is a target of the project.

Run as a script: turns.py PROJECT TURNS USER…; fails with those results that were not the user's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dbt.cli.main import dbtRunner

ROWS = "select owner, {turn} as turn from {{{{ ref('mine') }}}}"
# In one of so many turns a user builds the table anew, in the others they look at it.
REBUILT = 10
BRIEFLY = ["--quiet", "--no-write-json", "--no-send-anonymous-usage-stats"]


def take_turns(project: Path, turns: int, users: list[str]) -> list[str]:
    """Let each user run dbt, turn by turn; returns what they should not see."""
    faults = []
    for turn in range(turns):
        for user in users:
            if turn % REBUILT == 0:
                actual, own = invoke(project, user, "run"), []
            else:
                actual = invoke(project, user, "show", "--inline", ROWS.format(turn=turn))
                own = [(user, turn)]
            if actual != own:
                faults.append(f"{user} in turn {turn}: {actual}")
    return faults


def invoke(project: Path, user: str, *arguments: str) -> list[tuple[object, ...]]:
    """Rows of the command's first result."""
    # Another target in the same folder would have dbt parse the project anew.
    place = ["--target", user, "--target-path", str(project / user)]
    place += ["--log-path", str(project / user)]
    place += ["--project-dir", str(project), "--profiles-dir", str(project)]
    done = dbtRunner().invoke([*BRIEFLY, *arguments, *place])
    if not done.success:
        return [("failed", done.exception or [r.message for r in done.result.results])]
    table = done.result.results[0].agate_table
    return [tuple(row) for row in table.rows] if table else []


if __name__ == "__main__":
    sys.exit("\n".join(take_turns(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])) or 0)
