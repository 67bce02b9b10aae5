"""A stream's sink in a process of its own, which may be killed at any moment."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from dbt.adapters.iceberg_stream.stream.errors import StreamError
from dbt.adapters.iceberg_stream.stream.key_index import index
from dbt.adapters.iceberg_stream.stream.sink.commits import commit_batches
from dbt.adapters.iceberg_stream.tables.compaction import small_files
from dbt.adapters.iceberg_stream.tables.deletes.conversion import convert_equality_deletes
from tests.integration.streams import NAME, Change, Truth, open_sink, write
from tests.integration.writers import open_catalog

BATCH = 20
# Tables of one stream, which both have all its changes.
TWO = ("s", "one"), ("s", "two")


def change(offset: int) -> Change:
    """The change at an offset of the source: always the same."""
    chosen = random.Random(offset)
    value = None if chosen.random() < 0.2 else str(offset)
    return Change(chosen.randrange(12), value)


def changes(lower: int, upper: int) -> list[Change]:
    return [change(offset) for offset in range(lower, upper)]


def truth(upper: int) -> Truth:
    expected = Truth()
    expected.apply(changes(0, upper))
    return expected


def drain(place: dict[str, str], upto: int, outcome: Any = None, with_index: bool = False) -> None:
    """Take in the source up to an offset, in commits of one to three batches.

    With an index it is stored after each commit, however small it is, and small files are merged.
    Without one, equality deletes are converted.
    """
    lake = open_catalog(place)
    limits = index.STORED_ROWS, index.STORED_SHARE, small_files.MERGED_FILES
    try:
        sink = open_sink(lake, NAME)
        if with_index:
            index.STORED_ROWS, index.STORED_SHARE, small_files.MERGED_FILES = 0, 0, 4
            sink.load_index(1000, refresh=False)
        offset = int((sink.progress.frontier or {"offset": 0})["offset"])
        for uppers in _commits(offset, upto):
            written = []
            for upper in uppers:
                options = {"rows": 7, "max_keys": offset % 3 * 5, "keeps_keys": with_index}
                write_id, one = write(sink, changes(offset, upper), upper, **options)
                written.append(sink.add_to_index(one))
                offset = upper
            sink.commit(write_id, written)
            sink.store_index()
            if with_index:
                sink.maintenance.merge_small_files()
                sink.maintenance.rewrite_deleted_rows()
            elif offset % 3 == 0:
                convert_equality_deletes(lake, NAME, {})
    except StreamError as error:
        if outcome is None:
            raise
        outcome.put(type(error).__name__)
    else:
        if outcome is not None:
            outcome.put("done")
    finally:
        index.STORED_ROWS, index.STORED_SHARE, small_files.MERGED_FILES = limits
        lake.close()


def drain_two(place: dict[str, str], upto: int) -> None:
    """Take in the source up to an offset, into two tables at once; one that is behind goes first."""
    lake = open_catalog(place)
    sinks = [open_sink(lake, name) for name in TWO]
    at = [int((sink.progress.frontier or {"offset": 0})["offset"]) for sink in sinks]
    for upper in range(min(at) + BATCH, upto + 1, BATCH):
        behind = [sink for sink, offset in zip(sinks, at, strict=True) if offset < upper]
        written = [write(sink, changes(upper - BATCH, upper), upper, rows=7) for sink in behind]
        parts = [(sink, [one]) for sink, (_, one) in zip(behind, written, strict=True)]
        commit_batches(written[0][0], parts)
    lake.close()


def _commits(offset: int, upto: int) -> Iterator[list[int]]:
    while offset < upto:
        batches = 1 + random.Random(offset).randrange(3)
        uppers = list(range(offset + BATCH, offset + batches * BATCH + 1, BATCH))
        yield uppers
        offset = uppers[-1]


def frontier(metadata: dict[str, Any], sink_id: str) -> dict[str, Any] | None:
    text = metadata["properties"].get(f"iceberg-stream.sink.{sink_id}")
    return None if text is None else json.loads(text)["frontier"]
