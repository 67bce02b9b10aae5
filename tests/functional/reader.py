"""A reader of its own: counts a table's rows over and over, through PyIceberg alone.

Run as a script: reader.py CATALOG SCHEMA NAME EXPECTED_COUNTS STOP_FILE; prints its faults. CATALOG
is PyIceberg's properties as JSON. How often it has read stands in STOP_FILE.NAME.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError


def main() -> None:
    catalog, schema, name, expected, stop_file = sys.argv[1:]
    allowed = {int(count) for count in expected.split(",")}
    lake = load_catalog("lake", **json.loads(catalog))
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
