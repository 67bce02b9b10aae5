"""Data tests that have passed, and from what, in a file of the project's target folder.

A test owns no table whose properties could keep its record, as those of models do. A property of a
table that it reads would be a commit, for which a reader may have no privilege.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.iceberg_stream.unchanged.record import change_of_code

if TYPE_CHECKING:
    from dbt.adapters.iceberg_stream.unchanged.inputs import Inputs

FILE = "passed_tests.db"
NEVER_PASSED = "it has not passed with `skip_unchanged` before"
BUSY_SECONDS = 5.0
TABLE = """
create table if not exists passed_tests (
    scope text not null, test text not null, record text not null, primary key (scope, test)
) without rowid
"""


@dataclass(frozen=True)
class PassedTest:
    """A run of a test that found nothing.

    Attributes:
        code: digests of the test's code and of what else determines its result, by what they are
            of, in the words of messages.
        query: digest of the statement.
        inputs: the result of `Inputs.as_json`.
        passed_at: when it began (ISO 8601, UTC).
    """

    code: Mapping[str, str]
    query: str
    inputs: Mapping[str, Any]
    passed_at: str

    def change_to(self, other: PassedTest, inputs: Inputs) -> str | None:
        """Return what has changed since the test passed; None if nothing has.

        Args:
            other: the record that it would leave now.
            inputs: the current inputs.
        """
        if change := change_of_code(self.code, other.code):
            return change
        if change := inputs.change_since(self.inputs):
            return change
        return None if self.query == other.query else "its compiled query changed"


class PassedTests:
    """The file of tests that have passed. Several threads and processes may use it.

    Args:
        path: of the file, which need not exist.
        scope: identifies the user and the catalogs: those of others have records of their own.
    """

    def __init__(self, path: Path, scope: str) -> None:
        self._path = path
        self._scope = scope

    def get(self, test: str) -> PassedTest | None:
        """Return the record of a test; None if there is none that can be read.

        Args:
            test: dbt's id of the test.
        """
        if not self._path.exists():
            return None
        try:
            with closing(self._open()) as file:
                query = "select record from passed_tests where scope = ? and test = ?"
                row = file.execute(query, (self._scope, test)).fetchone()
            values = json.loads(row[0]) if row else {}
            return PassedTest(**{field.name: values[field.name] for field in fields(PassedTest)})
        except (sqlite3.Error, ValueError, KeyError, TypeError):
            # It is damaged, or an earlier or later version of the adapter wrote it.
            return None

    def put(self, test: str, record: PassedTest) -> None:
        """Replace the record of a test.

        Args:
            test: dbt's id of the test.
            record: the new record.

        Raises:
            OSError, sqlite3.Error: the file cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(record), separators=(",", ":"), sort_keys=True)
        with closing(self._open()) as file, file:
            statement = "insert or replace into passed_tests values (?, ?, ?)"
            file.execute(statement, (self._scope, test, text))

    def forget(self, test: str) -> None:
        """Drop the record of a test, which begins to run: it may fail from the same inputs.

        Args:
            test: dbt's id of the test.

        Raises:
            OSError, sqlite3.Error: the file cannot be written.
        """
        if self.get(test) is not None:
            with closing(self._open()) as file, file:
                statement = "delete from passed_tests where scope = ? and test = ?"
                file.execute(statement, (self._scope, test))

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
        try:
            file.execute(TABLE)
        except sqlite3.Error:
            file.close()
            raise
        return file
