"""Messages about values that a config may not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def must_be_one_of(name: str, value: Any, choices: Iterable[Any]) -> str:
    """Name the option, what it may be and what it is, without a full stop."""
    return f"`{name}` must be one of {', '.join(str(one) for one in choices)}; got {value!r}"


def must_be(name: str, value: Any, what: str) -> str:
    """Name the option, what it must be, such as `a size, e.g. 2g`, and what it is."""
    return f"`{name}` must be {what}; got {value!r}"
