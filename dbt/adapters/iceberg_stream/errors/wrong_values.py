"""Messages about invalid values in a config."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

# Similarity from which a key is taken for a misspelled option.
MISSPELLED_CUTOFF = 0.85


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


def misspelled(config: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    """Return a message for each key that is similar to an option.

    Args:
        config: the config.
        options: the valid keys.
    """
    errors = []
    for key in config:
        if key not in options and (option := _similar(key, tuple(options))):
            errors.append(f"unknown config `{key}`: did you mean `{option}`?")
    return errors


@cache
def _similar(key: str, options: tuple[str, ...]) -> str | None:
    """Return the most similar option; the configs of dbt itself are looked up for each model."""
    close = difflib.get_close_matches(key, options, n=1, cutoff=MISSPELLED_CUTOFF)
    return close[0] if close else None
