"""The prompt of the shell on a terminal: editing, history and completion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from dbt.adapters.iceberg_stream.shell.commands import preload
from dbt.adapters.iceberg_stream.shell.completion import complete
from dbt.adapters.iceberg_stream.shell.names import NameReader
from dbt.adapters.iceberg_stream.shell.shell import Shell

HISTORY_FILE = "shell_history"


def run_prompt(shell: Shell, names: NameReader) -> int:
    """Read and run lines of a terminal until the user leaves.

    Args:
        shell: runs the lines.
        names: the names of the project, for completion.

    Returns:
        The exit code of the shell: how the last command ended does not matter to who has seen it.
    """
    # While the user types, what the first command would wait for is imported.
    preloading = threading.Thread(target=preload, daemon=True)
    preloading.start()
    session: PromptSession[str] = PromptSession(
        history=open_history(),
        completer=_Completer(names, preloading),
        complete_while_typing=False,
        complete_in_thread=True,
    )
    while not shell.left:
        failed = f"[{shell.exit_code}] " if shell.exit_code else ""
        try:
            line = session.prompt(f"{failed}dbt> ")
            # Modules that import each other must not be imported in two threads at once.
            preloading.join()
            shell.run_line(line)
        except KeyboardInterrupt:
            continue
        except EOFError:
            break
    return 0


class _Completer(Completer):
    def __init__(self, names: NameReader, preloading: threading.Thread) -> None:
        self._names = names
        self._preloading = preloading

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        self._preloading.join()
        line = document.text_before_cursor
        completions = complete(line, self._names.read())
        for word in completions.words:
            yield Completion(word, start_position=completions.start - len(line))


class UserHistory(FileHistory):
    """The user's history in a file. It leaves out lines that begin with a space."""

    def append_string(self, string: str) -> None:
        if string.strip() and not string.startswith(" "):
            super().append_string(string)


def open_history() -> History:
    """Return the history of earlier shells; an empty one if its file cannot be used."""
    folder = Path(platformdirs.user_state_path("dbt-iceberg-stream"))
    path = folder / HISTORY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Lines may have what only the user should read.
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return UserHistory(str(path))
