"""Which files of a folder come next, without Spark."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from pathlib import Path

import pyarrow.fs as fs
import pytest

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.sources.files.definition import files_source
from dbt.adapters.iceberg_stream.stream.sources.files.source import FilesSource
from dbt.adapters.iceberg_stream.stream.sources.source import describe


@pytest.fixture
def source(tmp_path: Path) -> FilesSource:
    spec = {"path": f"file://{tmp_path}", "format": "json", "columns": "id int"}
    return files_source(spec, fs.LocalFileSystem(), str(tmp_path))


@pytest.fixture
def now() -> int:
    """In seconds; as of the test, since a source settles what is ten minutes old."""
    return int(time.time())


def land(folder: Path, name: str, second: int | None = None) -> None:
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    if second is not None:
        os.utime(path, (second, second))


def test_a_file_of_the_future(source: FilesSource, tmp_path: Path, now: int) -> None:
    land(tmp_path, "now")
    land(tmp_path, "future", now + 86_400)
    lower = source.plan_batch(None, 1000)
    assert lower is not None and lower["files"] == 2
    land(tmp_path, "next", now + 1)
    upper = source.plan_batch(lower, 1000)
    assert upper is not None and upper["files"] == 1
    assert source.plan_batch(upper, 1000) is None


def test_progress_of_the_future(source: FilesSource, tmp_path: Path, now: int) -> None:
    """An older version has taken the time of a file for now: what comes would count as read."""
    land(tmp_path, "next")
    lower = {"settled": (now + 86_400) * 1000, "names": {}, "files": 1}
    with pytest.raises(StreamError, match="ahead of this machine's clock"):
        source.plan_batch(lower, 1000)


def test_a_folder_is_listed_once_for_many_batches(
    source: FilesSource, tmp_path: Path, now: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        land(tmp_path, f"{number:02}", now - 100 + number)
    listed, original = [], FilesSource._list
    monkeypatch.setattr(FilesSource, "_list", lambda self: listed.append(1) or original(self))
    until = source.present(None)
    lower, batches = None, []
    while (upper := source.plan_batch(lower, 0, until)) is not None:
        batches.append([file.path[-7:-5] for file in source.batch(lower, upper)])
        source.lag(upper)
        lower = upper
    assert batches == [[f"{number:02}"] for number in range(20)]
    # Once for what is there, and once to see that nothing is left.
    assert len(listed) == 2


def test_progress_of_an_older_version(source: FilesSource, tmp_path: Path, now: int) -> None:
    """Its names of files are shorter."""
    for name in ("one", "two", "three"):
        land(tmp_path, name, now)
    digests = {
        name: hashlib.sha256(str(tmp_path / f"{name}.json").encode()) for name in ("one", "two")
    }
    names = {digests["one"].hexdigest()[:10]: now * 1000}
    # A newer one has hashes of the path alone, too, but in base 64.
    read = {str(now * 1000): base64.b64encode(digests["two"].digest()[:12]).decode()}
    lower = {"settled": (now - 600) * 1000, "names": names, "read": read, "files": 2}
    upper = source.plan_batch(lower, 1000)
    assert upper is not None and upper["files"] == 1
    assert source.plan_batch(upper, 1000) is None
    land(tmp_path, "much later", now)
    assert source.lag(upper).count == 0  # what was listed just now does
    after = source.plan_batch(upper, 1000)
    assert after is not None and after["files"] == 1
    # Their names lack the time.
    for name in ("one", "two"):
        land(tmp_path, name, now + 1)
    rewritten = source.plan_batch(after, 1000)
    assert rewritten is not None and rewritten["files"] == 2


def test_names_of_many_files_differ(source: FilesSource, tmp_path: Path) -> None:
    """Of forty bits of a hash two files in a million or so have the same."""
    land(tmp_path, "one")
    lower = source.plan_batch(None, 1000)
    assert lower is not None
    (name,) = lower["read"].values()
    assert len(base64.b64decode(name)) * 8 >= 96


def test_an_empty_file(source: FilesSource, tmp_path: Path) -> None:
    """It has no rows, and what comes behind it is read; once it has content, that is read, too."""
    (tmp_path / "0.json").touch()
    land(tmp_path, "1")
    lower = source.plan_batch(None, 1000)
    assert lower is not None and lower["files"] == 1
    land(tmp_path, "0")
    upper = source.plan_batch(lower, 1000)
    assert upper is not None and upper["files"] == 1


@pytest.mark.parametrize("age", [0, 500, 700])
def test_a_file_that_is_rewritten(source: FilesSource, tmp_path: Path, now: int, age: int) -> None:
    """It is another file, however long ago the first one was read."""
    land(tmp_path, "one", now - age)
    land(tmp_path, "newest", now)
    lower = source.plan_batch(None, 1000)
    assert lower is not None and lower["files"] == 2
    land(tmp_path, "one", now + 1)
    upper = source.plan_batch(lower, 1000)
    assert upper is not None and upper["files"] == 1
    assert [Path(file.path).name for file in source.batch(lower, upper)] == ["one.json"]
    assert source.plan_batch(upper, 1000) is None


def test_a_file_that_is_rewritten_with_its_time(
    source: FilesSource, tmp_path: Path, now: int
) -> None:
    """Its size tells, until its time is settled."""
    for name, age in (("recent", 500), ("settled", 700), ("newest", 0)):
        land(tmp_path, name, now - age)
    lower = source.plan_batch(None, 1000)
    assert lower is not None and lower["files"] == 3
    for name, age in (("recent", 500), ("settled", 700)):
        (tmp_path / f"{name}.json").write_text("{ }")
        os.utime(tmp_path / f"{name}.json", (now - age, now - age))
    upper = source.plan_batch(lower, 1000)
    assert upper is not None and upper["files"] == 1
    assert [Path(file.path).name for file in source.batch(lower, upper)] == ["recent.json"]


def test_a_file_that_is_rewritten_before_it_is_read(
    source: FilesSource, tmp_path: Path, now: int
) -> None:
    land(tmp_path, "one", now - 1)
    upper = source.plan_batch(None, 1000)
    assert upper is not None
    land(tmp_path, "one", now)
    with pytest.raises(StreamError, match=r"gone or were changed \(1 of 1\)"):
        source.require(None, upper)


def test_a_file_that_vanishes(source: FilesSource, tmp_path: Path) -> None:
    land(tmp_path, "one")
    lower = source.plan_batch(None, 1000)
    assert lower is not None
    (tmp_path / "one.json").unlink()
    with pytest.raises(StreamError, match=r"gone or were changed \(1 of "):
        source.require(None, lower)
    assert describe(lower).startswith("files of up to 20")
