"""Run streams until they are stopped, and report their health and metrics."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from dbt_common.exceptions import DbtRuntimeError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dbt.adapters.iceberg_stream.errors.reason import reason
from dbt.adapters.iceberg_stream.errors.redaction import without_secrets
from dbt.adapters.iceberg_stream.stream.http_server import BoundedServer, is_allowed_host
from dbt.adapters.iceberg_stream.stream.status import StreamStatus

PREFIX = "iceberg_stream"
COUNTERS = {
    "changes": "Changes read.",
    "upserts": "Rows written.",
    "deletes": "Keys whose last change in a batch is a delete.",
    "batches": "Batches written.",
    "commits": "Snapshots committed.",
    "bad_records": "Records that could not be read.",
    "skipped_records": "Records of other types than that which the stream reads.",
}
# Attribute of the status: name in the metric, and description.
GAUGES = {
    "polled": ("looked", "Time of the last poll of the source, in seconds since the epoch."),
    "committed": ("committed", "Time of the last commit, in seconds since the epoch."),
}


@dataclass(eq=False)
class Service:
    """The streams of this process, which run until they are stopped.

    Without a service, a stream model ends when its source is drained.

    Attributes:
        stop: once set, all streams commit their pending batches and end.
        stop_requested: whether a user asked the service itself to end, not only its streams.
        engine_lost: whether the streams ended because Spark was lost.
        streams: status of each stream by its model's unique id.
        fenced: unique ids of models that another run has taken over.
        committed: keys of `streams` whose tables had a commit before the last restart.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    stop_requested: bool = False
    engine_lost: bool = False
    streams: dict[str, StreamStatus] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)

    def end(self) -> None:
        """End the service at a user's request."""
        self.stop_requested = True
        self.stop.set()

    def lose_engine(self) -> None:
        """End all streams: they share the engine that one of them has lost."""
        self.engine_lost = True
        self.stop.set()

    def restart(self) -> None:
        """Prepare for another run of the streams."""
        self.engine_lost = False
        self.committed |= {key for key, status in self.streams.items() if status.commits}
        for status in self.streams.values():
            status.state = "restarting"
        self.stop.clear()
        if self.stop_requested:
            self.stop.set()

    def has_rebuilt(self, models: Collection[str]) -> bool:
        """Return whether a run before the last restart has rebuilt the tables (`full_refresh`).

        Args:
            models: unique ids of the models of one stream, whose tables are rebuilt by one commit.
        """
        # The keys of routed tables begin with the id of their model.
        return any(key.partition("/")[0] in models for key in self.committed)

    def healthy(self) -> bool:
        """Return whether all streams run: none failed, none waits for a new engine."""
        unhealthy = ("failed", "restarting")
        return not any(status.state in unhealthy for status in self.streams.values())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all streams, for Prometheus."""
        streams = list(self.streams.values())
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["model"])
            for status in streams:
                counter.add_metric([status.name], getattr(status, name))
            yield counter
        for attribute, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}_{name}_timestamp_seconds", text, labels=["model"])
            for status in streams:
                gauge.add_metric([status.name], getattr(status, attribute))
            yield gauge
        lag = GaugeMetricFamily(
            f"{PREFIX}_lag", "Data of the source that is not read yet.", labels=["model", "unit"]
        )
        up = GaugeMetricFamily(f"{PREFIX}_up", "1 while a stream has not failed.", labels=["model"])
        for status in streams:
            up.add_metric([status.name], 0 if status.state in ("failed", "restarting") else 1)
            if status.lag is not None:
                lag.add_metric([status.name, status.lag.unit], status.lag.count)
        yield from (lag, up)


# The service of `iceberg-stream run`, which runs dbt in its own process.
_current: Service | None = None


def current() -> Service | None:
    """Return the service of this process; None if streams are to be drained."""
    return _current


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    """Keep the streams of this process running until the service stops.

    Args:
        service: what `current` returns within the context.
    """
    global _current
    _current = service
    try:
        yield service
    finally:
        _current = None


@contextmanager
def endpoint(
    service: Service,
    host: str,
    port: int,
    page: Callable[[], str] | None = None,
    names: Iterable[str] = (),
) -> Iterator[int]:
    """Serve `/health`, `/metrics` and a page over HTTP; the context's value is the port.

    Args:
        service: whose streams are reported.
        host: the address to listen on.
        port: the port to listen on; 0 for any free one.
        page: returns the HTML to serve at `/`; may raise DbtRuntimeError and OSError.
        names: by which clients may ask for it, besides addresses and `localhost`.

    Raises:
        OSError: the address is in use.
    """
    registry = CollectorRegistry()
    registry.register(service)
    allowed = {host, socket.gethostname(), *names}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not is_allowed_host(self.headers.get("Host"), allowed):
                body = b"This name is not one of the server's: see --allowed-host.\n"
                self._answer(421, body, "text/plain")
            elif self.path == "/metrics":
                self._answer(200, generate_latest(registry), "text/plain; version=0.0.4")
            elif self.path == "/health":
                states = {name: status.state for name, status in service.streams.items()}
                body = json.dumps({"healthy": service.healthy(), "streams": states}).encode()
                self._answer(200 if service.healthy() else 503, body, "application/json")
            elif self.path == "/" and page is not None:
                self._answer_page(page)
            else:
                self._answer(404, b"/, /health or /metrics\n", "text/plain")

        def _answer_page(self, page: Callable[[], str]) -> None:
            try:
                body = page().encode()
            except (DbtRuntimeError, OSError) as error:
                message = f"The page cannot be written: {without_secrets(reason(error))}\n"
                self._answer(503, message.encode(), "text/plain; charset=utf-8")
            else:
                self._answer(200, body, "text/html; charset=utf-8")

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: monitoring sends requests all the time."""

    try:
        server = BoundedServer((host, port), Handler)
    except OSError as error:
        raise OSError(
            f"Health and metrics cannot be served at http://{host}:{port}: {error.strerror}. Set "
            "another --port or --host."
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
