"""Which words can follow in a line: dbt's commands, their options, and names of the project."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import click

from dbt.adapters.iceberg_stream.shell.line import PROGRAM
from dbt.adapters.iceberg_stream.shell.names import Names
from dbt.adapters.iceberg_stream.shell.shell import HELP, LEAVE, REFUSED

# Options whose values select nodes. dbt has other names for some of them.
SELECTIONS = {"select", "models", "exclude"}
# What may stand before a name in a selector: the node's parents, or all that it needs.
OPERATORS = re.compile(r"@|\d*\+")


@dataclass(frozen=True)
class Completions:
    """What can stand at the end of a line.

    Attributes:
        start: where in the line it begins.
        words: the words.
    """

    start: int
    words: tuple[str, ...] = ()


def complete(line: str, names: Names) -> Completions:
    """Return how the last word of a line can go on.

    Args:
        line: the line up to the cursor.
        names: the names of the project.
    """
    *before, word = re.split(r"\s+", line.lstrip())
    if before[:1] == [PROGRAM]:
        before = before[1:]
    start = len(line) - len(word)
    if before[:1] == [HELP]:
        return _starting(word, start, _dbt_commands())
    if not before:
        return _starting(word, start, [*_dbt_commands(), HELP, *LEAVE])
    command, words = _find_command(before)
    if command is None:
        return Completions(start)
    if isinstance(command, click.Group):
        return _starting(word, start, command.commands)
    if word.startswith("-"):
        return _starting(word, start, _options(command))
    option = _open_option(command, words)
    if option is None:
        is_macro = command.name == "run-operation" and not words
        return _starting(word, start, names.macros if is_macro else ())
    if option.name in SELECTIONS:
        return _complete_selector(word, start, names)
    if option.name == "selector":
        return _starting(word, start, names.selectors)
    return _starting(word, start, _choices(option))


def _starting(word: str, start: int, candidates: Iterable[str]) -> Completions:
    return Completions(start, tuple(sorted({c for c in candidates if c.startswith(word)})))


def _complete_selector(word: str, start: int, names: Names) -> Completions:
    """Complete the last name in a selector such as `+orders,tag:daily`."""
    part = word.rpartition(",")[2]
    if operator := OPERATORS.match(part):
        part = part[operator.end() :]
    start += len(word) - len(part)
    method, colon, value = part.partition(":")
    if not colon:
        return _starting(part, start, [*names.nodes, *(f"{each}:" for each in names.methods)])
    return _starting(value, start + len(method) + 1, names.methods.get(method, ()))


def _dbt_commands() -> list[str]:
    from dbt.adapters.iceberg_stream.shell.shell import dbt_commands

    return [name for name in dbt_commands() if name not in REFUSED]


def _find_command(words: Sequence[str]) -> tuple[click.Command | None, list[str]]:
    """Return the command of a line and the words behind it."""
    from dbt.cli.main import cli

    command: click.Command | None = cli
    rest = list(words)
    while isinstance(command, click.Group):
        while rest and rest[0].startswith("-"):
            rest.pop(0)
        if not rest:
            break
        command = command.commands.get(rest.pop(0))
    return command, rest


def _options(command: click.Command) -> tuple[str, ...]:
    return tuple(_by_name(command))


@cache
def _by_name(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by each of their names, with those that turn one off."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    shown = [each for each in options if not each.hidden]
    return {name: each for each in shown for name in (*each.opts, *each.secondary_opts)}


def _open_option(command: click.Command, words: Sequence[str]) -> click.Option | None:
    """Return the option that the next word is a value of."""
    options = _by_name(command)
    for position in range(len(words) - 1, -1, -1):
        if not words[position].startswith("-"):
            continue
        option = options.get(words[position])
        if option is None or option.is_flag:
            return None
        # Options of selectors take all words up to the next option.
        taken = len(words) - 1 - position
        return option if taken == 0 or option.multiple else None
    return None


def _choices(option: click.Option) -> tuple[str, ...]:
    kind = option.type
    return tuple(str(choice) for choice in kind.choices) if isinstance(kind, click.Choice) else ()
