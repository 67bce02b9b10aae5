"""A network between a client and a server that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class TcpProxy:
    """Forwards connections to a port or socket of this machine, until it is cut or swallows.

    `mend` lets new connections through.
    """

    def __init__(self, target: int | Path) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._whole = True
        self._swallows = threading.Event()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole = False
        while self._open:
            _shut(self._open.pop())

    def swallow(self) -> None:
        """Lose, without a word, whatever is sent from now on."""
        self._swallows.set()

    def mend(self) -> None:
        self._whole = True
        if self._swallows.is_set():
            self._swallows.clear()
            while self._open:
                _shut(self._open.pop())

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._whole:
                client.close()
                continue
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            for source, sink in ((client, server), (server, client)):
                pump = threading.Thread(target=self._pump, args=(source, sink), daemon=True)
                pump.start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        return server

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._swallows.is_set():
                    sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextlib.contextmanager
def tcp_proxy(target: int | Path) -> Iterator[TcpProxy]:
    """Run a proxy to a port or socket of this machine."""
    proxy = TcpProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
