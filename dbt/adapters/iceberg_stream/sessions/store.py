"""Store cached results, up to a number of bytes, in memory or in a private file."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

# A result may take at most this part of the limit, so that it does not evict all others.
MAX_SHARE = 1 / 8
BUSY_SECONDS = 5.0
# `used` is a counter of accesses; `touched` has the relations that a result reads. Stores of older
# versions have the same names.
TABLES = """
create table if not exists results (
    key text primary key, body blob not null, bytes integer not null, used integer not null
);
create table if not exists touched (
    relation text not null, key text not null references results on delete cascade,
    primary key (relation, key)
) without rowid;
create index if not exists by_use on results (used, bytes);
create index if not exists touched_by_key on touched (key);
"""


class StoreError(Exception):
    """The store cannot be used; the message says why."""


class ResultStore:
    """Results by key; the least recently used are dropped first. Thread-safe.

    Several processes may share the file.
    """

    def __init__(self, path: Path | None, limit: int) -> None:
        """Open the store.

        Args:
            path: of the file; None for a store in memory.
            limit: size of all results, in bytes.

        Raises:
            StoreError: the file cannot be used, or others may read it.
        """
        self._limit = limit
        self._guard = threading.Lock()
        if path is not None:
            _require_private(path)
        try:
            self._db = sqlite3.connect(
                path or ":memory:",
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = off")
            self._db.execute("pragma foreign_keys = on")
            self._db.executescript(TABLES)
        except sqlite3.Error as error:
            raise StoreError(f"{path}: {error}") from error

    def get(self, key: str) -> bytes | None:
        """Return a result; None if the store does not have it.

        Args:
            key: of the result.

        Raises:
            StoreError: the file is damaged, or its disk is full or missing.
        """
        with self._guard, _convert_errors():
            rows = self._db.execute(
                "update results set used = (select max(used) + 1 from results) "
                "where key = ? returning body",
                (key,),
            ).fetchall()
        return bytes(rows[0][0]) if rows else None

    def put(self, key: str, body: bytes, relations: Collection[str]) -> bool:
        """Store a result.

        Args:
            key: of the result.
            body: the result.
            relations: names of the tables and views that it reads.

        Returns:
            Whether it was stored: False if it is too large.

        Raises:
            StoreError: the file is damaged, or its disk is full or missing.
        """
        if len(body) > self._limit * MAX_SHARE:
            return False
        with self._guard, _convert_errors():
            self._db.execute("begin immediate")
            try:
                self._insert(key, body, relations)
                self._make_room()
            except sqlite3.Error:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
        return True

    def forget(self, relation: str) -> None:
        """Drop all results that read a relation.

        Args:
            relation: its name, as in `put`.
        """
        with self._guard, _convert_errors():
            self._db.execute(
                "delete from results where key in (select key from touched where relation = ?)",
                (relation,),
            )

    def close(self) -> None:
        """Close the file."""
        with self._guard:
            self._db.close()

    def _insert(self, key: str, body: bytes, relations: Collection[str]) -> None:
        self._db.execute(
            "insert or replace into results values "
            "(?, ?, ?, (select coalesce(max(used), 0) + 1 from results))",
            (key, body, len(body)),
        )
        self._db.executemany(
            "insert or ignore into touched values (?, ?)", [(name, key) for name in relations]
        )

    def _make_room(self) -> None:
        self._db.execute(
            "delete from results where key in (select key from (select key, "
            "sum(bytes) over (order by used desc) as kept from results) where kept > ?)",
            (self._limit,),
        )


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert SQLite's errors to StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(str(error)) from error


def _require_private(path: Path) -> None:
    """Create the file if it does not exist, and check that only its owner may access it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite creates its journal files with the same mode.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            status = os.fstat(file)
        finally:
            os.close(file)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreError(f"other users may access {path}: remove it, or run `chmod 600` on it")
