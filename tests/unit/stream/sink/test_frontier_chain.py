"""Frontiers of a run, as its snapshots' summaries have them, and put together again."""

from __future__ import annotations

import base64
import json
import random

import pytest

from dbt.adapters.iceberg_stream.stream.sink.frontier_chain import FrontierChain, whole_frontier
from dbt.adapters.iceberg_stream.stream.sources.files.landed_files import (
    LandedFile,
    frontier_after,
    read_check,
)
from dbt.adapters.iceberg_stream.stream.sources.source import Frontier

BEGIN = 1_700_000_000_000


def run_of_batches(
    batches: list[list[LandedFile]], late_seconds: float = 600.0
) -> tuple[list[Frontier], list[tuple[str, Frontier]]]:
    """Whole frontiers of a run's commits, and what their summaries have; oldest first."""
    chain, lower = FrontierChain(), None
    whole, summaries = [], []
    for number, files in enumerate(batches):
        lower = frontier_after(lower, files, late_seconds)
        summary, chain = chain.next_summary(lower, str(number))
        whole.append(lower)
        summaries.append((str(number), json.loads(json.dumps(summary))))
    return whole, summaries


def files_of(count: int, per_second: float, late: random.Random | None = None) -> list[LandedFile]:
    files = []
    for number in range(count):
        at = BEGIN + int(number * 1000 / per_second)
        if late is not None and late.random() < 0.1:
            at -= late.randrange(100_000)
        files.append(LandedFile(f"/landing/part-{number:06}.json", at, 100))
    return files


def in_batches(files: list[LandedFile], size: int) -> list[list[LandedFile]]:
    return [files[begin : begin + size] for begin in range(0, len(files), size)]


@pytest.mark.parametrize("late_seconds", [0.0, 3.0, 600.0])
@pytest.mark.parametrize("seed", range(10))
def test_every_frontier_is_put_together_again(seed: int, late_seconds: float) -> None:
    late = random.Random(seed)
    batches = in_batches(files_of(400, 20, late), late.randrange(1, 30))
    whole, summaries = run_of_batches(batches, late_seconds)
    for number, frontier in enumerate(whole):
        again = whole_frontier(reversed(summaries[: number + 1]))
        assert again is not None
        assert (again["settled"], again["last"]) == (frontier["settled"], frontier["last"])
        is_in, was_in = read_check(again), read_check(frontier)
        for batch in batches:
            assert [is_in(file) for file in batch] == [was_in(file) for file in batch]


def test_summaries_stay_small() -> None:
    """Two hundred files a second: each summary would have a megabyte and more."""
    files = files_of(60_000, 200)
    whole, summaries = run_of_batches(in_batches(files, 2_000))
    size = sum(len(json.dumps(summary)) for _, summary in summaries)
    assert size < 3 * 16 * len(files)
    assert len(json.dumps(whole[-1])) < 1.1 * 16 * len(files)


def test_a_frontier_whose_older_part_has_expired() -> None:
    _, summaries = run_of_batches(in_batches(files_of(40, 20), 10))
    assert "since" not in summaries[0][1] and "since" in summaries[1][1]
    assert whole_frontier(reversed(summaries[1:])) is None
    assert whole_frontier([summaries[3], summaries[1], summaries[0]]) is None
    assert whole_frontier([]) is None


def test_frontiers_of_other_sources_are_whole() -> None:
    chain = FrontierChain()
    for number, frontier in enumerate(({"orders:0": 1}, {"orders:0": 2}, {"snapshot-id": 7})):
        summary, chain = chain.next_summary(frontier, str(number))
        assert summary == frontier
        assert whole_frontier([(str(number), summary)]) == frontier


def test_names_of_an_older_version_are_kept() -> None:
    """It has them by the millisecond."""
    files = files_of(4, 20)
    old = {
        "settled": BEGIN - 600_000,
        "read": {str(BEGIN): base64.b64encode(b"x" * 12).decode()},
        "files": 1,
    }
    lower = frontier_after(old, files[:2], 600.0)
    chain = FrontierChain()
    first, chain = chain.next_summary(lower, "a")
    second, chain = chain.next_summary(frontier_after(lower, files[2:], 600.0), "b")
    assert whole_frontier([("b", second), ("a", first)]) == chain.frontier
    assert chain.frontier is not None and str(BEGIN) in chain.frontier["read"]
