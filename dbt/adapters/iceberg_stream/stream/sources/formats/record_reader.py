"""Read messages of one schema: many at once, and those that a fast library cannot one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from dbt.adapters.iceberg_stream.stream.sources.formats.arrays import Bad

# Parts that messages are cut into to find those that a library refuses, and the number of messages
# of which each is read alone.
PARTS = 16
FEW = 4


class Doubt(Exception):
    """A library may read one of several messages wrongly."""


class Problem(NamedTuple):
    """Why a message cannot be decoded.

    Attributes:
        field: path of the value that does not fit its type; empty for the whole message.
        why: what is known besides; it follows `the message `.
    """

    field: str = ""
    why: str = ""


class NotDecodable(ValueError):
    """A message cannot be decoded.

    Args:
        field: see Problem.
        why: see Problem.
    """

    def __init__(self, field: str = "", why: str = "") -> None:
        super().__init__(field)
        self.problem = Problem(field, why)


class FastReader(Protocol):
    """Reads many messages at once by a library that reads most of them."""

    def accepts(self, bodies: Sequence[bytes]) -> bool:
        """Return whether the library reads messages, rightly or wrongly.

        Args:
            bodies: the messages without their headers.
        """

    def read(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, Bad]:
        """Return the records of messages, and which of them may be wrong.

        Args:
            bodies: the messages without their headers.

        Raises:
            Doubt: the library refuses one of them.
        """


class SlowReader(Protocol):
    """Reads each message as the rules of its format say."""

    def read(self, bodies: Sequence[bytes]) -> tuple[pa.StructArray, dict[int, Problem]]:
        """Return the records of messages, and why some cannot be decoded, by their places.

        Args:
            bodies: the messages without their headers.
        """


def read_records(
    fast: FastReader | None, slow: SlowReader, bodies: Sequence[bytes]
) -> tuple[pa.StructArray, dict[int, Problem]]:
    """Return the records of messages, and why some cannot be decoded, by their places.

    Args:
        fast: reads most messages; None if it would read none.
        slow: reads all.
        bodies: the messages without their headers.
    """
    if fast is None or len(bodies) <= FEW:
        return slow.read(bodies)
    refused: list[int] = []
    try:
        records, doubtful = fast.read(bodies)
    except Doubt:
        refused = list(_refused(fast, bodies, 0))
        own = set(refused)
        kept = [body for place, body in enumerate(bodies) if place not in own]
        try:
            records, doubtful = fast.read(kept)
        except Doubt:
            return slow.read(bodies)
    if doubtful is None and not refused:
        return records, {}
    by_fast = np.ones(len(bodies), np.bool_)
    by_fast[refused] = False
    if doubtful is not None:
        by_fast[np.flatnonzero(by_fast)[doubtful]] = False
        records = records.filter(pa.array(~doubtful))
    places = np.flatnonzero(~by_fast)
    others, problems = slow.read([bodies[place] for place in places.tolist()])
    order = np.empty(len(bodies), np.int64)
    order[by_fast] = np.arange(len(records))
    order[places] = len(records) + np.arange(len(places))
    joined = pa.concat_arrays([records, others]).take(pa.array(order))
    return joined, {int(places[place]): problem for place, problem in problems.items()}


def _refused(fast: FastReader, bodies: Sequence[bytes], begin: int) -> Iterator[int]:
    """Yield the places of messages that a library refuses, and of a few beside them."""
    if fast.accepts(bodies):
        return
    if len(bodies) <= FEW:
        yield from range(begin, begin + len(bodies))
        return
    size = -(-len(bodies) // PARTS)
    for place in range(0, len(bodies), size):
        yield from _refused(fast, bodies[place : place + size], begin + place)
