"""Where cached results lie: bounded in bytes, in memory or in a file that only its owner reads."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Collection
from pathlib import Path

# Of the bound, what one result may take: a single large one must not drive out all others.
LARGEST_SHARE = 8
BUSY_SECONDS = 5.0
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
    """The store cannot be used: why."""


class ResultStore:
    """Bodies of results by key, the least recently used of them dropped first. Thread-safe.

    Several processes may share the file.
    """

    def __init__(self, path: Path | None, limit: int) -> None:
        """Open the file, or memory without one; `limit` in bytes.

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
        """The body of a result; None if it is not there.

        Raises:
            StoreError: the file is damaged, or its disk is full or gone.
        """
        with self._guard, _explained():
            found = self._db.execute(
                "update results set used = (select max(used) + 1 from results) "
                "where key = ? returning body",
                (key,),
            ).fetchall()
        return bytes(found[0][0]) if found else None

    def put(self, key: str, body: bytes, relations: Collection[str]) -> bool:
        """Keep a result that reads the relations; False if it is too large to be kept."""
        if len(body) > self._limit // LARGEST_SHARE:
            return False
        with self._guard, _explained():
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
        """Drop all results that read a relation."""
        with self._guard, _explained():
            self._db.execute(
                "delete from results where key in (select key from touched where relation = ?)",
                (relation,),
            )

    def close(self) -> None:
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


class _explained:
    """SQLite's errors as StoreError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise StoreError(str(error)) from error


def _require_private(path: Path) -> None:
    """Make the file if it is not there; nobody but its owner may read or write it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite gives the files beside it the same mode.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            found = os.fstat(file)
        finally:
            os.close(file)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise StoreError(f"{path} is open to others than this user: remove it, or `chmod 600` it")
