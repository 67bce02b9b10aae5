import sys, tempfile, json, os
from pathlib import Path
sys.path.insert(0, "/tmp/w/r2")
import pyarrow as pa
from pyiceberg.table.update import SetLocationUpdate, SetPropertiesUpdate
from dbt.adapters.iceberg_stream.catalog.catalogs import Catalogs
from dbt.adapters.iceberg_stream.catalog.locations import local_path
from dbt.adapters.iceberg_stream.catalog.sqlite import SqliteBackend
from dbt.adapters.iceberg_stream.catalog.catalog import IcebergCatalog
from dbt.adapters.iceberg_stream.tables import references as refs
from dbt.adapters.iceberg_stream.tables import drop as dropmod
from dbt.adapters.iceberg_stream.tables import clones
from dbt.adapters.iceberg_stream.tables.clones import clone_table
from dbt.adapters.iceberg_stream.tables.commit.change import append
from dbt.adapters.iceberg_stream.tables.drop import Drop, drop_table, drop_tables, run_drops
from dbt.adapters.iceberg_stream.builds.staged import stage_table
from dbt.adapters.iceberg_stream.builds.names import staged_name
from tests.unit.local_tables import *
ROW = pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]})
OTHER=("s","other")
def fresh():
    return Path(tempfile.mkdtemp(dir="/tmp/w/r2/hostile"))
def setp(lake, name=NAME, **kv):
    lake.commit(load(lake, name), (), (SetPropertiesUpdate(updates={k: v for k,v in kv.items()}),))
def props(lake, name, d):
    lake.commit(load(lake, name), (), (SetPropertiesUpdate(updates=d),))
def move(lake, name, loc):
    lake.commit(load(lake, name), (), (SetLocationUpdate(location=loc),))
def missing(lake, name):
    """files that a table references and that are not there"""
    lake._backend._last_written.clear()
    try: t = load(lake, name)
    except Exception as e: return [f"CANNOT LOAD {name}: {type(e).__name__} {e}"]
    try:
        return [l for l in set(refs.own_references(t)) if not local_path(l).exists()]
    except Exception as e: return [f"CANNOT READ {name}: {type(e).__name__} {e}"]
