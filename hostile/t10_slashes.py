from common import *
from dbt.adapters.iceberg_stream.catalog.locations import comparable, comparables
for x,y in [("hdfs://nn/ns/t/f","hdfs://nn//ns/t/f"),("hdfs://nn/ns/t/f","hdfs:/ns/t/f"),("s3://b/t/f","s3://b//t/f"),("s3://b/t/f","s3a://b/t//f"),("gs://b/t","gcs://b//t"),("abfss://c@a.dfs/t","abfss://c@a.dfs//t"),("file:/a/b","file:////a//b"),("abfs://c/t","abfss://c/t"),("s3://b/t x/f","s3://b/t%20x/f")]:
    print(x,y,comparable(x),comparable(y), comparable(x)==comparable(y), comparable(x) in comparables(y), comparable(y) in comparables(x))
import pyarrow.fs as fs
