from common import *
import pyarrow.fs as fs
from datetime import datetime, timezone, timedelta
from dbt.adapters.iceberg_stream.maintenance import orphans as o
from pyiceberg.io.pyarrow import PyArrowFileIO
d=fresh(); orig=PyArrowFileIO._initialize_fs
sub=fs.SubTreeFileSystem(str(d/"hdfs"), fs.LocalFileSystem())
[(d/"hdfs/wh/t"/x).mkdir(parents=True) for x in ("data","metadata")]
class Norm(fs.FileSystemHandler): pass
PyArrowFileIO._initialize_fs=lambda self, scheme, netloc=None: sub if scheme=="hdfs" else orig(self,scheme,netloc)
a=make_catalog(d/"a"); make_table(a)
move(a,NAME,"hdfs://nn/wh/t"); commit(a,append(*write(a,ROW),properties={}))
move(a,NAME,"hdfs://nn//wh/t")   # Hadoop: the same folder
t=load(a)
try:
    found=o.find_orphans(t, datetime.now(timezone.utc)+timedelta(seconds=1), [a])
    print([x.location for x in found])
except Exception as e: print(type(e), e)
