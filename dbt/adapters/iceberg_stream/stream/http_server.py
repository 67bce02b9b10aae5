"""An HTTP server for a few local readers, which bounds connections and checks `Host`."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 32
# Seconds that a connection may last, and of which it may send nothing.
LONGEST_CONNECTION = 30.0
LONGEST_SILENCE = 5.0


class BoundedServer(ThreadingHTTPServer):
    """Serves at most MOST_CONNECTIONS connections at a time; closes the others at once.

    Args:
        address: host and port to listen on.
        handler: answers the requests.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, if one is free."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection; close it after a while, however slowly its client sends."""
        request.settimeout(LONGEST_SILENCE)
        timer = threading.Timer(LONGEST_CONNECTION, _cut, [request])
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that end early: monitoring does so all the time."""


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended


def is_allowed_host(header: str | None, allowed: Iterable[str]) -> bool:
    """Return whether a request is for this server by a name that it has.

    A page of another site can have its own name resolve to this machine (DNS rebinding), and would
    read what the server answers. It cannot do so with an address.

    Args:
        header: the request's `Host`.
        allowed: names of the server.
    """
    host = (header or "").strip().lower()
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    if name == "localhost" or name in {entry.lower() for entry in allowed}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
