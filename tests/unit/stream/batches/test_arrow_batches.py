"""When PyArrow is tried for a batch of a stream."""

from __future__ import annotations

from dbt.adapters.iceberg_stream.stream.batches.arrow_batches import (
    BATCHES_OF_SPARK,
    MOST_FALLBACKS,
    Fallbacks,
)


def batches_of_spark(fallbacks: Fallbacks) -> int:
    """Return how many batches go to Spark until PyArrow is tried again."""
    count = 0
    while not fallbacks.allow_arrow():
        count += 1
    return count


def test_after_several_in_a_row_spark_computes_the_next_batches() -> None:
    fallbacks = Fallbacks()
    for _ in range(MOST_FALLBACKS):
        assert fallbacks.allow_arrow()
        fallbacks.add()
    assert batches_of_spark(fallbacks) == BATCHES_OF_SPARK
    # The batch that is tried then decides.
    fallbacks.add()
    assert batches_of_spark(fallbacks) == BATCHES_OF_SPARK
    fallbacks.reset()
    fallbacks.add()
    assert batches_of_spark(fallbacks) == 0


def test_fallbacks_among_other_batches_do_not_count() -> None:
    fallbacks = Fallbacks()
    for _ in range(5 * MOST_FALLBACKS):
        fallbacks.add()
        fallbacks.reset()
        assert fallbacks.allow_arrow()
