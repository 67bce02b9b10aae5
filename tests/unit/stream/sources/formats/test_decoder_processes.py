"""What other processes decode is what this one would have decoded, whatever becomes of them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from dbt.adapters.iceberg_stream.stream.sources.formats import decoder_processes
from dbt.adapters.iceberg_stream.stream.sources.formats.decoder_processes import (
    DecoderProcesses,
    Messages,
)
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
    Decoded,
    MessageDecoder,
)
from tests.unit.stream.sources.formats.decoded_messages import numbered
from tests.unit.stream.sources.formats.test_frozen_answers import FILES, decoder_of, octets

Pairs = list[tuple[int, Messages]]


@pytest.fixture(scope="module")
def processes() -> Iterator[DecoderProcesses]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_processes, "FIRST_PARTS", 0)
        patch.setattr(decoder_processes, "MOST_PROCESSES", 1)
        patch.setattr(decoder_processes, "_cores", lambda: 2)
        started = DecoderProcesses()
        yield started
        for process in started._processes:
            process._end()


def topics(name: str, most: int) -> Iterator[tuple[MessageDecoder, Pairs]]:
    """Decoders, and messages for them in parts."""
    for line in gzip.decompress((FILES / f"{name}.jsonl.gz").read_bytes()).splitlines()[:most]:
        topic = json.loads(line)
        values = [octets(message[0]) for message in topic["messages"]]
        keys = [octets(*message[2:]) for message in topic["messages"]]
        size = max(1, len(values) // 5)
        yield (
            decoder_of(topic),
            [
                (n, Messages(values[n : n + size], keys[n : n + size]))
                for n in range(0, len(values), size)
            ],
        )


def wait_until_ready(processes: DecoderProcesses) -> None:
    """Wait for a process, which starts with the first messages."""
    decoder, parts = next(topics("json", 1))
    wait_for(lambda: [*processes.decode(decoder, parts)] and processes._free(True) is not None)


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def shown(decoded: Decoded) -> tuple[Any, ...]:
    rest = (decoded.of, decoded.deleted, decoded.is_old, decoded.truncates)
    decoded.rows.validate(full=True)
    rows = numbered(pa.Table.from_batches([decoded.rows]))
    return (
        decoded.rows.schema,
        rows,
        [part.tolist() for part in rest],
        list(decoded.bad),
        decoded.skipped,
    )


class Here(MessageDecoder):
    """A decoder that counts what this process decodes."""

    count = 0

    def decode(self, *messages: Any) -> Decoded:
        type(self).count += 1
        return super().decode(*messages)


@pytest.mark.parametrize("name", ["json", "images", "json_schema", "avro", "protobuf"])
def test_every_format(processes: DecoderProcesses, name: str) -> None:
    wait_until_ready(processes)
    by_process = 0
    for decoder, parts in topics(name, 12):
        expected = [(number, shown(decoder.decode(*messages))) for number, messages in parts]
        decoder.__class__, Here.count = Here, 0
        actual = [(number, shown(part)) for number, part in processes.decode(decoder, parts)]
        assert actual == expected
        by_process += len(parts) - Here.count
    assert by_process > 5


def test_a_process_that_is_killed(processes: DecoderProcesses) -> None:
    wait_until_ready(processes)
    [process] = processes._processes
    decoder, parts = next(topics("avro", 1))
    expected = [shown(decoder.decode(*messages)) for _, messages in parts]
    for kill_at in range(3):

        def killed(at: int = kill_at) -> Iterator[tuple[int, Messages]]:
            for number, part in enumerate(parts):
                if number == at:
                    process._process.kill()
                yield part

        assert [shown(part) for _, part in processes.decode(decoder, killed())] == expected
    wait_for(lambda: process.has_ended)
    assert [shown(part) for _, part in processes.decode(decoder, parts)] == expected
    assert not processes._processes
    processes._may_start = True


def test_an_idle_process_ends(processes: DecoderProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until_ready(processes)
    [process] = processes._processes
    monkeypatch.setattr(decoder_processes, "IDLE_SECONDS", 0.2)
    decoder, parts = next(topics("json", 1))
    assert len([*processes.decode(decoder, parts)]) == len(parts)
    wait_for(lambda: process.has_ended)
    assert process.was_idle
    wait_for(lambda: not psutil.pid_exists(process._process.pid))
    monkeypatch.undo()
    wait_until_ready(processes)


def test_an_interrupt_is_for_the_process_that_has_started_it(processes: DecoderProcesses) -> None:
    wait_until_ready(processes)
    [process] = processes._processes
    os.kill(process._process.pid, signal.SIGINT)
    time.sleep(0.2)
    assert process.is_free


def test_parts_are_given_as_soon_as_they_are_decoded(processes: DecoderProcesses) -> None:
    """Also if there is always a process that is free, because messages come slowly."""
    wait_until_ready(processes)
    decoder, [(_, messages), *_] = next(topics("json", 1))
    taken = 0

    def slowly() -> Iterator[tuple[int, Messages]]:
        nonlocal taken
        for taken in range(1, 21):
            time.sleep(0.05)
            yield taken, messages

    waiting = [taken - number for number, _ in processes.decode(decoder, slowly())]
    assert max(waiting) <= 3


def test_a_thread_without_memory(
    processes: DecoderProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until_ready(processes)
    [process] = processes._processes
    decoder, parts = next(topics("avro", 1))
    expected = [shown(decoder.decode(*messages)) for _, messages in parts]
    real = Connection.recv_bytes

    def refuse(self: Connection, *arguments: Any) -> bytes:
        if self is process._connection:
            raise MemoryError
        return real(self, *arguments)

    monkeypatch.setattr(Connection, "recv_bytes", refuse)
    assert [shown(part) for _, part in processes.decode(decoder, parts)] == expected
    wait_for(lambda: process.has_ended)
    monkeypatch.undo()
    processes._may_start = True


FORKS = """
import os
from tests.unit.stream.sources.formats.test_decoder_processes import *
decoder_processes.FIRST_PARTS = 0
decoder_processes._cores = lambda: 2
processes = decoder_processes.PROCESSES
wait_until_ready(processes)
decoder, parts = next(topics("json", 1))
expected = [shown(decoder.decode(*messages)) for _, messages in parts]
child = os.fork()
signal.alarm(40)
for _ in range(20):
    assert [shown(part) for _, part in processes.decode(decoder, parts)] == expected
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_process_that_forks() -> None:
    """Both would read the answers of one process."""
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=60)


@pytest.mark.parametrize("path", [[Path("/nowhere")], []])
def test_odd_paths(path: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, *path])
    monkeypatch.setattr(sys, "executable", sys.executable if path else None)
    monkeypatch.setattr(decoder_processes, "FIRST_PARTS", 0)
    monkeypatch.setattr(decoder_processes, "_cores", lambda: 2)
    processes = DecoderProcesses()
    decoder, parts = next(topics("json", 1))
    expected = [shown(decoder.decode(*messages)) for _, messages in parts]
    assert [shown(part) for _, part in processes.decode(decoder, parts)] == expected
    assert bool(processes._processes) == bool(path)


OWNER = """
import time
from tests.unit.stream.sources.formats.test_decoder_processes import *
decoder_processes.FIRST_PARTS = 0
decoder_processes._cores = lambda: 2
processes = DecoderProcesses()
wait_until_ready(processes)
print(processes._processes[0]._process.pid, flush=True)
time.sleep(60)
"""


def test_a_process_ends_with_the_one_that_has_started_it() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("executable", ["/nowhere/python", "/bin/false"])
def test_where_no_process_can_be_started(executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(decoder_processes, "FIRST_PARTS", 0)
    monkeypatch.setattr(decoder_processes, "_cores", lambda: 2)
    processes = DecoderProcesses()
    decoder, parts = next(topics("json", 1))
    expected = [shown(decoder.decode(*messages)) for _, messages in parts]

    def decode() -> bool:
        assert [shown(part) for _, part in processes.decode(decoder, parts)] == expected
        return not processes._may_start

    wait_for(decode)
