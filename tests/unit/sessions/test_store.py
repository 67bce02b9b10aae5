"""The store of results: bounded, private, shared by processes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dbt.adapters.iceberg_stream.sessions.store import ResultStore, StoreError

LIMIT = 8000


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "r.db" if request.param == "disk" else None, LIMIT)


def test_what_was_put_is_there(store: ResultStore) -> None:
    assert store.get("a") is None
    assert store.put("a", b"one", ["t"])
    assert store.put("a", b"two", ["t"])
    assert store.get("a") == b"two"


def test_a_relation_is_forgotten(store: ResultStore) -> None:
    store.put("a", b"1", ["t", "u"])
    store.put("b", b"2", ["u"])
    store.put("c", b"3", ["v"])
    store.forget("t")
    assert [store.get(key) for key in "abc"] == [None, b"2", b"3"]
    store.forget("u")
    assert [store.get(key) for key in "abc"] == [None, None, b"3"]


def test_the_least_recently_used_makes_room(store: ResultStore) -> None:
    for number in range(8):
        store.put(str(number), bytes(1000), ["t"])
    assert store.get("0") is not None
    store.put("new", bytes(1000), ["t"])
    there = [str(n) for n in range(8) if store.get(str(n)) is not None]
    assert there == ["0", "2", "3", "4", "5", "6", "7"]


def test_a_large_result_does_not_drive_out_the_others(store: ResultStore) -> None:
    store.put("a", b"1", ["t"])
    assert not store.put("large", bytes(LIMIT // 8 + 1), ["t"])
    assert store.get("a") == b"1"


def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = ResultStore(tmp_path / "r.db", LIMIT)
        store.put("a", b"secret", ["t"])
    finally:
        os.umask(before)
    files = list(tmp_path.iterdir())
    assert len(files) > 1
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.touch(0o644)
    with pytest.raises(StoreError, match="other users may access"):
        ResultStore(path, LIMIT)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch(0o600)
    (tmp_path / "r.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"r\.db"):
        ResultStore(tmp_path / "r.db", LIMIT)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_bytes(b"not a database, by no means" * 100)
    path.chmod(0o600)
    with pytest.raises(StoreError, match="not a database"):
        ResultStore(path, LIMIT)


def test_two_share_a_file(tmp_path: Path) -> None:
    one, other = (ResultStore(tmp_path / "r.db", LIMIT) for _ in range(2))
    one.put("a", b"1", ["t"])
    assert other.get("a") == b"1"
    other.forget("t")
    assert one.get("a") is None
