"""Messages that planning has read are those of their batch, and take a bounded memory."""

from __future__ import annotations

import random

import pytest

from dbt.adapters.iceberg_stream.stream.sources.kafka.kept_messages import PLANS, KeptMessages

PLACES = [("orders", 0), ("orders", 1), ("items", 0)]
# Bytes of a message with its offset.
MESSAGE = 100


def value_at(place: tuple[str, int], offset: int) -> bytes:
    return f"{place}@{offset}".encode().ljust(MESSAGE - 8, b".")


def read_to_plan(
    kept: KeptMessages, place: tuple[str, int], begin: int, end: int, chance: random.Random
) -> None:
    """Read as planning does; some offsets have no message, and it may stop before the end."""
    if not kept.start(place, begin):
        return
    while begin < end:
        high = min(end, begin + chance.randint(1, 5))
        offsets = [offset for offset in range(begin, high) if offset % 7]
        if offsets and not kept.add(place, [value_at(place, o) for o in offsets], offsets):
            return
        begin = high
        if chance.random() < 0.05:
            return


def taken(kept: KeptMessages, place: tuple[str, int], begin: int, end: int) -> tuple[int, int]:
    """Check the messages of a range; return how many are kept, and where the others begin."""
    batches, rest = kept.take(place, begin, end)
    rows = []
    for batch in batches:
        assert batch.topic == place[0]
        assert batch.places().tolist() == [place[1]] * len(batch.values)
        rows += zip(batch.all_offsets(), batch.values, strict=True)
    assert begin <= rest <= end
    offsets = [offset for offset in range(begin, rest) if offset % 7]
    assert rows == [(offset, value_at(place, offset)) for offset in offsets]
    return len(rows), rest


@pytest.mark.parametrize("seed", range(50))
def test_random_plans_and_batches(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.choice([3, 20, 10_000])
    kept = KeptMessages(most * MESSAGE)
    at = dict.fromkeys(PLACES, 1)
    planned: list[dict[tuple[str, int], tuple[int, int]]] = []
    count = 0
    for _ in range(30):
        for _ in range(chance.choice([1, 1, 2])):  # planning may begin again
            kept.begin()
            for place in PLACES:
                reach = at[place] + chance.choice([0, 3, 30])
                read_to_plan(kept, place, at[place], reach, chance)
        kept.finish()
        ranges = {place: (at[place], at[place] + chance.choice([0, 2, 20])) for place in PLACES}
        at = {place: end for place, (_, end) in ranges.items()}
        planned.append(ranges)
        if len(planned) == PLANS:
            for place, (begin, end) in planned.pop(0).items():
                if chance.random() < 0.9:  # another process may read it
                    count += taken(kept, place, begin, end)[0]
    assert count
    require_all_memory_is_free(kept, most)


def require_all_memory_is_free(kept: KeptMessages, most: int) -> None:
    for _ in range(PLANS + 1):
        kept.begin()
        kept.finish()
    place = PLACES[0]
    kept.take(place, 0, 0)  # a batch reads here again
    kept.begin()
    assert kept.start(place, 0)
    for number in range(most):
        is_more = kept.add(place, [value_at(place, number)], [number])
        assert is_more == (number < most - 1)


def test_a_batch_that_stops_early_frees_its_memory() -> None:
    kept = KeptMessages(10 * MESSAGE)
    kept.begin()
    kept.start(PLACES[0], 1)
    kept.add(PLACES[0], [value_at(PLACES[0], 1)] * 12, list(range(1, 13)))
    kept.finish()
    batches, rest = kept.take(PLACES[0], 1, 5)
    assert rest == 5
    assert next(batches).all_offsets().tolist() == [1, 2, 3, 4]
    batches.close()  # type: ignore[attr-defined]
    require_all_memory_is_free(kept, 10)


def test_partitions_that_no_batch_takes_are_not_kept() -> None:
    kept, place = KeptMessages(), PLACES[0]
    for _ in range(PLANS + 1):
        kept.begin()
        assert kept.start(place, 1)
        kept.add(place, [b"x"], [1])
        kept.finish()
    assert not kept.start(place, 1)
    kept.take(place, 5, 6)
    assert kept.start(place, 1)
