"""Faults between a client and an HTTP server: wrong statuses, lost answers, delays."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "host"}


@dataclass
class Fault:
    """What happens to the next requests that match.

    Attributes:
        matches: tells by method and path.
        status: answered instead of the server's own status; None for that.
        body: answered with the status.
        forwards: whether the server gets the request at all.
        delay: seconds before it does.
        times: how many requests it happens to.
        of_body: tells by the body of the request, too.
        cuts: whether the connection is closed without an answer.
    """

    matches: Callable[[str, str], bool]
    status: int | None = None
    body: bytes = b"the proxy's fault"
    forwards: bool = False
    delay: float = 0.0
    times: int = 1_000_000
    of_body: Callable[[bytes], bool] = lambda body: True
    cuts: bool = False


@dataclass
class FaultProxy:
    """A proxy that is running; `faults` may be changed at any time."""

    port: int
    target: int
    faults: list[Fault] = field(default_factory=list)
    hits: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, method: str, path: str, body: bytes = b"") -> Fault | None:
        """The fault that this request meets."""
        with self._guard:
            for fault in self.faults:
                if fault.times > 0 and fault.matches(method, path) and fault.of_body(body):
                    fault.times -= 1
                    self.hits += 1
                    return fault
        return None


@contextlib.contextmanager
def fault_proxy(target: int) -> Iterator[FaultProxy]:
    """Run a proxy to a port of this machine."""
    proxy = FaultProxy(0, target)

    class Handler(_Handler):
        faults = proxy

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: FaultProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.faults.take(self.command, self.path, body)
        if fault is not None:
            time.sleep(fault.delay)
        if fault is not None and fault.cuts:
            self.close_connection = True
            return
        if fault is None or fault.forwards or fault.status is None:
            try:
                status, headers, answer = self._ask(body)
            except OSError:
                self.close_connection = True
                return
        if fault is not None and fault.status is not None:
            status, headers, answer = fault.status, [], fault.body
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _serve

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.faults.target)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def log_message(self, format: str, *args: object) -> None:
        """The catalog's own log says what arrived."""
