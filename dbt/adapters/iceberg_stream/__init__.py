from dbt.adapters.base import AdapterPlugin
from dbt.include import iceberg_stream

from dbt.adapters.iceberg_stream.column import IcebergStreamColumn
from dbt.adapters.iceberg_stream.connections import IcebergStreamConnectionManager
from dbt.adapters.iceberg_stream.credentials import IcebergStreamCredentials
from dbt.adapters.iceberg_stream.impl import IcebergStreamAdapter
from dbt.adapters.iceberg_stream.relation import IcebergStreamRelation
from dbt.adapters.iceberg_stream.sessions.gc_tuning import reduce_gc_frequency

__all__ = [
    "IcebergStreamAdapter",
    "IcebergStreamColumn",
    "IcebergStreamConnectionManager",
    "IcebergStreamCredentials",
    "IcebergStreamRelation",
    "Plugin",
]

reduce_gc_frequency()

# "spark" lets packages that know Spark but not this adapter dispatch to their `spark__` macros.
Plugin = AdapterPlugin(
    # dbt's protocol has class variables where its own base class has properties.
    adapter=IcebergStreamAdapter,  # type: ignore[arg-type]
    credentials=IcebergStreamCredentials,
    include_path=iceberg_stream.PACKAGE_PATH,
    dependencies=["spark"],
)
