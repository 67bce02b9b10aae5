"""Runs of keys against a dict of lists."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.tables.keys import codes, runs
from dbt.adapters.iceberg_stream.tables.keys.codes import encode, encode_prefix
from dbt.adapters.iceberg_stream.tables.keys.runs import (
    Entries,
    Run,
    RunWriter,
    merge_runs,
    pack,
    unpack,
)

Truth = dict[Any, list[tuple[int, int]]]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MERGED_AT_ONCE", 7)
    monkeypatch.setattr(runs, "LOOKUPS_AT_ONCE", 5)
    monkeypatch.setattr(runs, "LARGE_BYTES", 1)


def keys_of(values: list[Any]) -> pa.Table:
    kind = pa.string() if any(isinstance(value, str) for value in values) else pa.int64()
    return pa.table({"k": pa.array(values, kind)})


def write(folder: Path, values: list[Any], file: int, truth: Truth) -> Run:
    for position, value in enumerate(values):
        truth[value].append((file, position))
    writer = RunWriter(folder / f"run-{file}")
    writer.append(Entries.of(encode(keys_of(values)), file, 0))
    return writer.close()


def find(run: Run, values: list[Any]) -> Truth:
    index_of = Entries.at(encode(keys_of(values)), np.arange(len(values), dtype=np.uint64))
    index, rows = run.find(index_of.lookup_keys())
    places = unpack(index_of.rows)[1][index]
    actual: Truth = defaultdict(list)
    for place, file, position in zip(places, *unpack(rows), strict=True):
        actual[values[place]].append((int(file), int(position)))
    return {value: sorted(at) for value, at in actual.items()}


def random_values(kind: str, count: int, chosen: random.Random) -> list[Any]:
    numbers = [chosen.choice([None, *range(30)]) for _ in range(count)]
    return numbers if kind == "numbers" else [n if n is None else f"k{n}" for n in numbers]


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("kind", ["numbers", "texts"])
@pytest.mark.parametrize("seed", range(10))
def test_lookups_find_all_rows_of_a_key_and_no_other(
    tmp_path: Path, kind: str, seed: int, collide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if collide:
        monkeypatch.setattr(codes, "_hash", lambda values: np.zeros(len(values), np.uint64))
    chosen = random.Random(seed)
    truth: Truth = defaultdict(list)
    parts = [
        write(tmp_path, random_values(kind, chosen.randrange(1, 40), chosen), n, truth)
        for n in range(3)
    ]
    merged = merge_runs(
        parts, tmp_path / "merged", lambda entries: np.ones(len(entries.rows), bool)
    )
    assert merged.count == sum(run.count for run in parts)
    asked = list(dict.fromkeys(random_values(kind, 25, chosen)))
    asked += ["nothing" if kind == "texts" else 1000]
    assert find(merged, asked) == {v: truth[v] for v in asked if truth[v]}


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_lookups_by_the_first_columns(
    tmp_path: Path, columns: int, seed: int, collide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if collide:
        monkeypatch.setattr(codes, "_hash", lambda values: np.zeros(len(values), np.uint64))
    chosen = random.Random(seed)
    kinds = {"a": pa.string(), "b": pa.int64(), "c": pa.string()}
    texts, numbers = [None, "", "k", "kk", "kkk"], [None, 0, 1, 256]

    def drawn(count: int) -> list[tuple[Any, ...]]:
        pick = chosen.choice
        return [(pick(texts), pick(numbers), pick(texts)) for _ in range(count)]

    def table(keys: list[tuple[Any, ...]], names: list[str]) -> pa.Table:
        arrays = zip(names, zip(*keys, strict=True), strict=True)
        return pa.table({name: pa.array(values, kinds[name]) for name, values in arrays})

    keys = drawn(60)
    writer = RunWriter(tmp_path / "run")
    writer.append(Entries.of(encode(table(keys, ["a", "b", "c"]), prefix=columns), 0, 0))
    run = writer.close()
    asked = list(dict.fromkeys(key[:columns] for key in drawn(6)))
    prefixes = encode_prefix(table(asked, ["a", "b"][:columns]))
    places = np.arange(len(asked), dtype=np.uint64)
    by_prefix = Entries.at(prefixes, places)
    index, rows = run.find(by_prefix.lookup_keys(), by_prefix=True)
    pairs = zip(by_prefix.rows[index].tolist(), unpack(rows)[1].tolist(), strict=True)
    expected = [
        (n, at) for n, p in enumerate(asked) for at, key in enumerate(keys) if key[:columns] == p
    ]
    assert sorted(pairs) == expected
    assert run.count_of(by_prefix.lookup_keys(), by_prefix=True) >= len(expected)
    # Whole keys are found as ever.
    whole = list(dict.fromkeys(drawn(20)))
    entries = Entries.at(
        encode(table(whole, ["a", "b", "c"]), prefix=columns),
        np.arange(len(whole), dtype=np.uint64),
    )
    index, rows = run.find(entries.lookup_keys())
    pairs = zip(entries.rows[index].tolist(), unpack(rows)[1].tolist(), strict=True)
    assert sorted(pairs) == [
        (n, at) for n, w in enumerate(whole) for at, key in enumerate(keys) if key == w
    ]


def test_entries_with_other_first_columns_are_not_counted(tmp_path: Path) -> None:
    rows = pa.table({"a": [f"k{n % 100}" for n in range(1000)], "b": list(range(1000))})
    writer = RunWriter(tmp_path / "run")
    writer.append(Entries.of(encode(rows, prefix=1), 0, 0))
    run = writer.close()
    asked, _ = encode_prefix(pa.table({"a": ["k7", "k8", "nothing"]})).sorted()
    assert run.count_of(asked, by_prefix=True) == 20


def test_a_merge_leaves_out_what_is_not_kept(tmp_path: Path) -> None:
    truth: Truth = defaultdict(list)
    parts = [write(tmp_path, list(range(20)), n, truth) for n in range(2)]
    merged = merge_runs(parts, tmp_path / "merged", lambda entries: unpack(entries.rows)[0] == 1)
    assert find(merged, [3, 19]) == {3: [(1, 3)], 19: [(1, 19)]}
    nothing = merge_runs(
        parts, tmp_path / "none", lambda entries: np.zeros(len(entries.rows), bool)
    )
    assert find(nothing, [3]) == {}


def test_a_run_that_is_removed_can_be_read_by_whom_it_is_open(tmp_path: Path) -> None:
    run = write(tmp_path, [1, 2], 0, defaultdict(list))
    assert find(run, [2]) == {2: [(0, 1)]}
    run.remove()
    assert not run.folder.exists()
    assert find(run, [1]) == {1: [(0, 0)]}


def test_packed_places() -> None:
    rows = pack(np.array([0, 2**31 - 1]), np.array([2**32 - 1, 7], np.uint64))
    assert [part.tolist() for part in unpack(rows | runs.NULL)] == [[0, 2**31 - 1], [2**32 - 1, 7]]
