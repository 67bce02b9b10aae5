"""Lines that are typed into the shell."""

from __future__ import annotations

import shlex

PROGRAM = "dbt"
COMMENT = "#"


class LineError(Exception):
    """A line cannot be split into arguments."""


def split_line(line: str) -> list[str]:
    """Return the arguments for dbt in a line, split as POSIX shells do.

    Args:
        line: the line; it may begin with `dbt`.

    Returns:
        The arguments; none for a blank line or a comment.

    Raises:
        LineError: a quote is not closed, or nothing follows a backslash.
    """
    if line.lstrip().startswith(COMMENT):
        return []
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise LineError(
            f"The line cannot be read: {str(error).lower()}. Close the quote, or write a backslash "
            "before a quote that is part of the text."
        ) from error
    if words == [PROGRAM]:
        return ["--help"]
    return words[1:] if words[:1] == [PROGRAM] else words
