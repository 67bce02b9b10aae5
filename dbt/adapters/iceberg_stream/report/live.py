"""The report of a running service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.report.gather import gather
from dbt.adapters.iceberg_stream.report.project import read_project
from dbt.adapters.iceberg_stream.report.render import render
from dbt.adapters.iceberg_stream.stream.status import StreamStatus

# A page is served again for so many seconds, and for so many times as long as it took to make: its
# requests must not slow down the streams, however many there are.
FRESH_SECONDS, FRESH_SHARE = 5.0, 10.0


class LivePage:
    """The report of a project as it is now; thread-safe."""

    def __init__(
        self,
        catalog: IcebergCatalog,
        target_path: Path,
        streams: Callable[[], Sequence[StreamStatus]],
        options: Sequence[str] = (),
    ) -> None:
        """Prepare the page; nothing is read before the first request.

        Args:
            catalog: the project's catalog.
            target_path: folder of dbt's artifacts.
            streams: returns the status of the streams that run.
            options: that printed commands need to find the same catalog.
        """
        self._catalog, self._target_path = catalog, target_path
        self._streams, self._options = streams, options
        self._lock = threading.Lock()
        self._page, self._fresh_until = "", 0.0

    def __call__(self) -> str:
        """Return the page as HTML, written again if it is not fresh.

        Raises:
            DbtRuntimeError: the catalog refuses or does not answer.
            OSError: dbt's manifest cannot be read.
        """
        with self._lock:
            began = time.monotonic()
            if began >= self._fresh_until:
                contents = gather(self._catalog, project=read_project(self._target_path))
                self._page = render(contents, self._options, self._streams())
                now = time.monotonic()
                self._fresh_until = now + max(FRESH_SECONDS, FRESH_SHARE * (now - began))
            return self._page
