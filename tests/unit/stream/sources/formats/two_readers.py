"""Two readers of a format must read the same, whichever of them a message comes to."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.record_reader import (
    FEW,
    Doubt,
    FastReader,
    SlowReader,
    read_records,
)
from tests.unit.stream.sources.formats.decoded_messages import records_as_text


def require_same_records(fast: FastReader, slow: SlowReader, bodies: Sequence[bytes]) -> int:
    """Check that what a fast reader does not doubt is what the slow one reads.

    Args:
        fast: the fast reader.
        slow: the slow reader.
        bodies: messages, good and bad ones.

    Returns:
        How many of them the fast reader does not doubt.
    """
    alone = [_alone(slow, body) for body in bodies]
    count = 0
    for body, expected in zip(bodies, alone, strict=True):
        found = undoubted(fast, [body])
        if found and found[0] is not None:
            assert expected == found[0], body
            count += 1
    together = undoubted(fast, bodies) or []
    for found_one, expected in zip(together, alone, strict=False):
        assert found_one in (None, expected)
    # Each comes several times, because a few messages are read by the slow reader anyway.
    for several in (list(bodies) * (FEW + 1), [b for b in bodies for _ in range(FEW + 1)]):
        records, problems = read_records(fast, slow, several)
        texts = records_as_text(records)
        known = dict(zip(bodies, alone, strict=True))
        assert [None if n in problems else text for n, text in enumerate(texts)] == [
            known[body] for body in several
        ]
        assert slow.read(several)[1] == problems
    return count


def undoubted(fast: FastReader, bodies: Sequence[bytes]) -> list[str | None] | None:
    """Return the records of messages; None for those that may be wrong, or if all may."""
    try:
        records, doubtful = fast.read(bodies)
    except Doubt:
        return None
    if doubtful is None:
        return list(records_as_text(records))
    sure = iter(records_as_text(records.filter(pa.array(~doubtful))))
    return [None if is_doubtful else next(sure) for is_doubtful in doubtful]


def _alone(slow: SlowReader, body: bytes) -> str | None:
    records, problems = slow.read([body])
    [text] = records_as_text(records)
    return None if problems else text
