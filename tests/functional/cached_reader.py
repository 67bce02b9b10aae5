"""A reader with cached results: it asks over and over for what a writer in another process counts.

Run as a script: cached_reader.py PROFILE PROJECT QUERY PROGRESS_FILE STOP_FILE; PROFILE is a
profile's output as JSON. The writer puts each number into PROGRESS_FILE once it is committed, so
an answer below what stood there before the question was asked is stale. Prints as JSON how often
was asked, how many answers were kept ones, and what was wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from dbt.adapters.iceberg_stream.profile.credentials import IcebergStreamCredentials


def main() -> None:
    profile, project, query, progress, stop = sys.argv[1:]
    credentials = IcebergStreamCredentials.from_dict(json.loads(profile))
    connected = SimpleNamespace(credentials=credentials, project_root=project)
    manager = IcebergStreamConnectionManager(connected, multiprocessing.get_context("spawn"))
    manager.set_connection_name("reader")
    asked, kept, faults = 0, 0, []
    while not Path(stop).exists():
        time.sleep(0.05)
        committed = int(Path(progress).read_text())
        response, rows = manager.execute(query, fetch=True)
        asked += 1
        kept += bool(response.from_cache)
        if int(rows.rows[0][0]) < committed:
            faults.append(f"{rows.rows[0][0]} after {committed} (kept: {response.from_cache})")
    manager.cleanup_all()
    sys.stdout.write(json.dumps({"asked": asked, "kept": kept, "faults": faults}))


main()
