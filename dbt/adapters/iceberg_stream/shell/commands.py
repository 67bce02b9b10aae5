"""Runs dbt's commands in this process, each as if it had a process of its own."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dbt.adapters.iceberg_stream.errors.redaction import without_secrets
from dbt.adapters.iceberg_stream.shell.artifacts import quick_artifacts
from dbt.adapters.iceberg_stream.shell.manifests import ManifestCache

if TYPE_CHECKING:
    from dbt.cli.main import dbtRunnerResult

SUCCEEDED = 0
# A model or a test failed, which dbt has reported.
FAILED = 1
# The command could not be run, or was interrupted.
ENDED = 2

# Commands that change the packages or the artifacts of a project.
CHANGING_COMMANDS = {"clean", "deps"}


class Commands:
    """Runs commands one after the other, and keeps what none of them can change."""

    def __init__(self) -> None:
        self._manifests = ManifestCache()
        self.interrupted = False

    def run(self, arguments: Sequence[str]) -> int:
        """Run a command of dbt, with its output, and return its exit code.

        Args:
            arguments: the command and its options.
        """
        with _own_state(arguments), self._manifests.used_by_dbt(), quick_artifacts():
            result = copy_context().run(_invoke, list(arguments))
        if CHANGING_COMMANDS.intersection(arguments):
            self._manifests.clear()
        self.interrupted = isinstance(result.exception, KeyboardInterrupt)
        if result.success:
            return SUCCEEDED
        return FAILED if result.exception is None else ENDED


def preload() -> None:
    """Import what most commands need, which takes seconds."""
    import dbt.cli.main
    import dbt.task.build
    import dbt.task.list  # noqa: F401

    import dbt.adapters.iceberg_stream
    import dbt.adapters.iceberg_stream.sessions.cursor
    import dbt.adapters.iceberg_stream.tables.ingest.ingest  # noqa: F401
    from dbt.adapters.iceberg_stream.engines.imports import load_pyspark

    load_pyspark()
    # All of this stays until the end of the process.
    gc.freeze()


def _invoke(arguments: list[str]) -> dbtRunnerResult:
    from dbt.cli.exceptions import DbtUsageException
    from dbt.cli.main import cli, dbtRunner
    from dbt_common.events.event_manager_client import add_callback_to_manager

    reported: list[str] = []

    def on_event(event: Any) -> None:
        if event.info.level == "error":
            reported.append(event.info.name)

    # dbt replaces it when it opens its log.
    add_callback_to_manager(on_event)
    # The runner names the program in help and logs after dbt's function.
    cli.name = "dbt"
    result = dbtRunner(callbacks=[on_event]).invoke(arguments)
    if isinstance(result.exception, DbtUsageException):
        _show_usage_error(str(result.exception), arguments)
    elif result.exception is not None and not reported:
        # It failed outside of what dbt reports.
        click.echo(without_secrets(str(result.exception) or repr(result.exception)), err=True)
    return result


def _show_usage_error(message: str, arguments: Sequence[str]) -> None:
    """Show an error of the arguments as dbt does on the command line."""
    from dbt.cli.main import cli

    command: click.Command = cli
    context = click.Context(cli, info_name=cli.name)
    for argument in arguments:
        inner = command.get_command(context, argument) if isinstance(command, click.Group) else None
        if inner is None:
            break
        command, context = inner, click.Context(inner, parent=context, info_name=argument)
    click.UsageError(message, context).show()


@contextmanager
def _own_state(arguments: Sequence[str]) -> Iterator[None]:
    """Begin without what dbt keeps in its modules, and undo what a command leaves in the process.

    dbt itself begins with new adapters, flags, loggers and a new invocation id.
    """
    from dbt.deprecations import buffered_deprecations, reset_deprecations
    from dbt_common.events.functions import reset_metadata_vars

    reset_deprecations()
    buffered_deprecations.clear()
    reset_metadata_vars()
    _reset_log()
    folder, environment, modules = os.getcwd(), dict(os.environ), set(sys.modules)
    # dbt records it as the command in its artifacts.
    program, sys.argv = sys.argv, ["dbt", *arguments]
    try:
        yield
    finally:
        sys.argv = program
        os.chdir(folder)
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
        _forget_project_modules(modules)


def _reset_log() -> None:
    """Let dbt print as it does before it has read its options."""
    from dbt_common.events.base_types import EventLevel
    from dbt_common.events.event_manager import EventManager
    from dbt_common.events.event_manager_client import add_logger_to_manager, ctx_set_event_manager
    from dbt_common.events.functions import get_stdout_config
    from dbt_common.events.logger import LineFormat

    ctx_set_event_manager(EventManager())
    add_logger_to_manager(get_stdout_config(LineFormat.PlainText, True, EventLevel.INFO, False))


def _forget_project_modules(before: set[str]) -> None:
    """Forget modules of the project that Python models have imported: they may be edited."""
    from dbt.cli.resolvers import default_project_dir

    configured = os.environ.get("DBT_ENGINE_PROJECT_DIR") or os.environ.get("DBT_PROJECT_DIR")
    root = Path(configured or default_project_dir()).resolve()
    environment = Path(sys.prefix).resolve()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None:
            continue
        path = Path(file)
        if path.is_relative_to(root) and not path.is_relative_to(environment):
            del sys.modules[name]
