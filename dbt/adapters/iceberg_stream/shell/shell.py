"""The loop of the shell: lines in, dbt's commands out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import click

from dbt.adapters.iceberg_stream.shell.commands import ENDED, Commands
from dbt.adapters.iceberg_stream.shell.line import LineError, split_line

LEAVE = ("exit", "quit")
HELP = "help"
# They ask questions, or are where the user is.
REFUSED = {
    "init": "`init` begins another project. Run `dbt init` outside of the shell.",
    "shell": "The shell is already running. Type a command of dbt, such as `run`.",
}
USAGE = """\
Type a command of dbt with its options, such as

  run -s orders+           build a model and those that read it
  test -s orders           run its tests
  build --full-refresh     with any option that dbt has
  show -s orders           show rows of a model

dbt's commands are {commands}.
`help COMMAND` shows the options of one. Tab completes commands, options and names of the project.

  Ctrl-C                   cancels the command that runs, or clears the line
  exit, quit, Ctrl-D       leave the shell

A line that begins with a space is not kept in the history."""


class Shell:
    """Runs lines, one after the other.

    Args:
        commands: runs dbt's commands.
        other_commands: the commands of `iceberg-stream`.
    """

    def __init__(self, commands: Commands, other_commands: Collection[str] = ()) -> None:
        self._commands = commands
        self._other_commands = set(other_commands)
        self.exit_code = 0
        self.left = False

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended the last command."""
        return self._commands.interrupted

    def run_lines(self, lines: Iterable[str]) -> int:
        """Run lines until one of them leaves the shell or is interrupted.

        Args:
            lines: the lines.

        Returns:
            The exit code of the last command.
        """
        for line in lines:
            self.run_line(line)
            if self.left or self.interrupted:
                break
        return self.exit_code

    def run_line(self, line: str) -> None:
        """Run the command of a line, and set its exit code; a blank line changes nothing.

        Args:
            line: the line.
        """
        try:
            arguments = split_line(line)
        except LineError as error:
            self._refuse(str(error))
            return
        if not arguments:
            return
        command, *options = arguments
        if command in LEAVE:
            self.left = True
        elif command == HELP:
            self._help(options)
        elif command in REFUSED:
            self._refuse(REFUSED[command])
        elif command in self._other_commands and command not in dbt_commands():
            self._refuse(
                f"`{command}` is no command of dbt. Run `iceberg-stream {command}` outside of the "
                "shell."
            )
        else:
            self.exit_code = self._commands.run(arguments)

    def _help(self, command: list[str]) -> None:
        if command:
            self.exit_code = self._commands.run([*command, "--help"])
            return
        names = [f"`{name}`" for name in dbt_commands() if name not in REFUSED]
        listed = click.wrap_text(f"{', '.join(names)}.", 99 - len("dbt's commands are "))
        click.echo(USAGE.replace("{commands}.", listed))
        self.exit_code = 0

    def _refuse(self, message: str) -> None:
        click.echo(f"Error: {message}", err=True)
        self.exit_code = ENDED


def dbt_commands() -> list[str]:
    """Return the names of dbt's commands."""
    from dbt.cli.main import cli

    return sorted(cli.commands)
