"""Write the report of a project with texts of all kinds: `python -m tests.report_page FILE`."""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

from dbt.adapters.iceberg_stream.report.gather import gather
from dbt.adapters.iceberg_stream.report.project import read_project
from dbt.adapters.iceberg_stream.report.render import render
from dbt.adapters.iceberg_stream.stream.sources.source import Lag
from dbt.adapters.iceberg_stream.stream.status import StreamStatus
from tests.unit.local_tables import make_catalog
from tests.unit.report.lakes import fill

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with closing(make_catalog(folder)) as lake:
            fill(lake, folder)
            contents = gather(lake, ["s"], read_project(folder / "target"))
    running = StreamStatus("events", "running", changes=12, lag=Lag(1_234, "rows"))
    output = Path(sys.argv[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(contents, running=[running]), encoding="utf-8")
