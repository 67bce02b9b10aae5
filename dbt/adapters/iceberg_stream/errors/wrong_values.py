"""Messages about invalid values in a config."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def must_be_one_of(name: str, value: Any, choices: Iterable[Any]) -> str:
    """Return the message for a value that is not among the choices, without a full stop.

    Args:
        name: the option.
        value: its value.
        choices: the valid values.
    """
    return f"`{name}` must be one of {', '.join(str(c) for c in choices)}; got {value!r}"


def must_be(name: str, value: Any, expected: str) -> str:
    """Return the message for an invalid value, without a full stop.

    Args:
        name: the option.
        value: its value.
        expected: what it must be: `a size, e.g. 2g`.
    """
    return f"`{name}` must be {expected}; got {value!r}"
