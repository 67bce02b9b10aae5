"""A reader of its own: counts a table's rows over and over, through PyIceberg alone.

Run as a script: reader.py WAREHOUSE SCHEMA NAME EXPECTED_COUNTS STOP_FILE; prints its faults. How
often it has read stands in STOP_FILE.NAME.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError


def main() -> None:
    warehouse, schema, name, expected, stop_file = sys.argv[1:]
    allowed = {int(count) for count in expected.split(",")}
    lake = SqlCatalog(
        "lake", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=Path(warehouse).as_uri()
    )
    reads, faults = 0, []
    while not Path(stop_file).exists():
        # Two cores are shared with the writer, which is what the test is about.
        time.sleep(0.03)
        reads += 1
        Path(f"{stop_file}.{name}").write_text(str(reads))
        try:
            runs = lake.load_table((schema, name)).scan().to_arrow()
        except (NoSuchTableError, FileNotFoundError) as error:
            faults.append(repr(error))
            continue
        versions = set(runs.column("version").to_pylist())
        if runs.num_rows not in allowed or len(versions) != 1:
            faults.append(f"{runs.num_rows} rows of versions {versions}")
    sys.stdout.write("\n".join(faults))


main()
