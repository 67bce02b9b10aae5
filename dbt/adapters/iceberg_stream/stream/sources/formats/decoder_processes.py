"""Decode messages in processes beside this one, whose interpreters run at the same time.

A process gets messages, and returns what `MessageDecoder` makes of them; it knows no broker, no
registry and no secret. What no process decodes, this one does: the first messages of a batch, while
others are busy, and whatever is left by a process that has ended.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from dbt.adapters.iceberg_stream.errors.logger import Logger
from dbt.adapters.iceberg_stream.stream.sources.formats.message_decoder import (
    Decoded,
    MessageDecoder,
    UnknownSchema,
)

# Parts of a batch before a process starts: for fewer, it is not worth it.
FIRST_PARTS = 4
# Parts that a process has at a time: one that it decodes, and one that is there when it is done.
AT_A_TIME = 2
# Besides this process, which reads the messages and writes the rows.
MOST_PROCESSES = 2
# Seconds without messages after which a process ends.
IDLE_SECONDS = 30.0
# Decoders that a process keeps.
DECODERS = 16
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {__name__} import serve; serve(int(sys.argv[2]))"
)
READY, UNKNOWN_SCHEMA = b"ready", b""
Part = TypeVar("Part")
logger = Logger()


class Messages(NamedTuple):
    """Messages to decode; see `MessageDecoder.decode`."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]


class _Request(msgspec.Struct, array_like=True):
    decoder: bytes
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]


# What a process answers: rows, and the rest of what is decoded; None if this process has to decode.
_Answer = tuple[bytes, bytes] | None


class _Process:
    """A process that decodes; its answers come in the order of the requests."""

    def __init__(self) -> None:
        self._connection, other = Pipe()
        with other:
            handle = other.fileno()
            paths = json.dumps(list(map(str, sys.path)))
            command = [sys.executable, "-I", "-c", START, paths, str(handle)]
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=[handle]
            )
        self._waiting: deque[Future[_Answer]] = deque()
        self._sending, self._changing = threading.Lock(), threading.Lock()
        self.is_ready = self.has_ended = self.was_idle = False
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def is_free(self) -> bool:
        """Whether it has so few messages that it is soon done."""
        return self.is_ready and len(self._waiting) < AT_A_TIME

    def submit(self, request: bytes) -> Future[_Answer]:
        """Return what the process will answer."""
        answer: Future[_Answer] = Future()
        with self._sending:
            try:
                with self._changing:
                    if self.has_ended:
                        answer.set_result(None)
                        return answer
                    self._waiting.append(answer)
                self._connection.send_bytes(request)
            except OSError:
                self._end()
            except BaseException:
                self._end()  # it may have no request for an answer, or a part of one
                raise
        return answer

    def close(self) -> None:
        """Close the connection, which another process keeps."""
        self._connection.close()

    def _receive(self) -> None:
        connection = self._connection
        try:
            # If it has ended, or this process ends it, or there is no memory for its answer.
            with suppress(OSError, EOFError, MemoryError):
                self._receive_answers(connection)
                self.was_idle = True
        finally:
            self._end()
            self._process.wait()
            with self._sending:
                connection.close()

    def _receive_answers(self, connection: Connection) -> None:
        """Receive until nothing comes for some time."""
        connection.recv_bytes()
        self.is_ready = True
        while self._waiting or connection.poll(IDLE_SECONDS):
            rest = connection.recv_bytes()
            answer = (connection.recv_bytes(), rest) if rest != UNKNOWN_SCHEMA else None
            with self._changing:
                if not self.has_ended:
                    self._waiting.popleft().set_result(answer)

    def _end(self) -> None:
        with self._changing:
            self.has_ended, self.is_ready = True, False
            self._process.kill()
            while self._waiting:
                self._waiting.popleft().set_result(None)


class DecoderProcesses:
    """Processes that decode for all streams of this one; they start if there is much to decode."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._may_start = True

    def decode(
        self, decoder: MessageDecoder, parts: Iterable[tuple[Part, Messages]]
    ) -> Generator[tuple[Part, Decoded], None, None]:
        """Yield what the messages of each part become, in their order.

        Args:
            decoder: decodes them.
            parts: the messages, and what else is known of them.

        Raises:
            StreamError: the schema of a message cannot be asked for.
        """
        begun = deque[tuple[Part, Messages, Future[_Answer]]]()
        for number, (part, messages) in enumerate(parts):
            process = self._free(number >= FIRST_PARTS)
            if process is not None:
                request = msgspec.msgpack.encode(_Request(decoder.portable(), *messages))
                begun.append((part, messages, process.submit(request)))
                while begun and begun[0][2].done():
                    yield _ended(decoder, *begun.popleft())
                continue
            decoded = decoder.decode(*messages)
            while begun:
                yield _ended(decoder, *begun.popleft())
            yield part, decoded
        while begun:
            yield _ended(decoder, *begun.popleft())

    def detach(self) -> list[_Process]:
        """Return the processes, which are used no more. No other thread runs."""
        processes, self._lock, self._processes = self._processes, threading.Lock(), []
        return processes

    def _free(self, may_start: bool) -> _Process | None:
        """Return a process that is free; start another if there is none, and there may be."""
        with self._lock:
            ended = [process for process in self._processes if process.has_ended]
            if any(not process.was_idle for process in ended):
                # Where one cannot run, or is killed, others would be, too.
                self._may_start = False
                logger.debug("A process that decodes messages has ended; no other is started.")
            self._processes = [process for process in self._processes if process not in ended]
            free = next((process for process in self._processes if process.is_free), None)
            if free is None and may_start and self._may_start:
                self._start()
            return free

    def _start(self) -> None:
        """Start a process, if not all have started."""
        if not sys.executable or len(self._processes) >= min(MOST_PROCESSES, _cores() - 1):
            return
        try:
            self._processes.append(_Process())
        except (OSError, RuntimeError) as error:  # there is no more memory, or no thread
            self._may_start = False
            logger.debug(f"No process is started that decodes messages: {error}.")


PROCESSES = DecoderProcesses()


def _forget() -> None:
    """Leave the processes to the one that this one is a copy of."""
    for process in PROCESSES.detach():
        process.close()


os.register_at_fork(after_in_child=_forget)


def _cores() -> int:
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def _ended(
    decoder: MessageDecoder, part: Part, messages: Messages, answer: Future[_Answer]
) -> tuple[Part, Decoded]:
    decoded = answer.result()
    if decoded is None:
        return part, decoder.decode(*messages)
    rows, rest = decoded
    batch = pa.ipc.read_record_batch(pa.py_buffer(rows), decoder.row_columns)
    return part, Decoded(batch, *pickle.loads(rest))


def serve(handle: int) -> None:
    """Decode messages in a process, until the one that has started it closes the connection.

    Args:
        handle: of the connection.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which ends both if the other one wants it
    connection = Connection(handle)
    arrived = SimpleQueue[bytes]()
    threading.Thread(target=_queue, args=(connection, arrived), daemon=True).start()
    connection.send_bytes(READY)
    read = msgspec.msgpack.Decoder(_Request)
    while True:
        request = read.decode(arrived.get())
        try:
            decoded = _decoder(request.decoder).decode(request.values, request.keys)
        except UnknownSchema:
            connection.send_bytes(UNKNOWN_SCHEMA)
            continue
        rows, *rest = (getattr(decoded, field.name) for field in fields(decoded))
        connection.send_bytes(pickle.dumps(rest, pickle.HIGHEST_PROTOCOL))
        connection.send_bytes(rows.serialize())


def _queue(connection: Connection, arrived: SimpleQueue[bytes]) -> None:
    """Take requests while others are decoded."""
    try:
        while True:
            arrived.put(connection.recv_bytes())
    except (OSError, EOFError):
        os._exit(0)


@lru_cache(DECODERS)
def _decoder(portable: bytes) -> MessageDecoder:
    return MessageDecoder.of(portable)
