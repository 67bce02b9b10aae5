from common import *
import pyarrow.fs as fs
from pyiceberg.io.pyarrow import PyArrowFileIO
# HDFS played by a folder; Hadoop's Path takes // as /
d=fresh()
orig=PyArrowFileIO._initialize_fs
sub=fs.SubTreeFileSystem(str(d/"hdfs"), fs.LocalFileSystem()); [(d/"hdfs/wh/t"/x).mkdir(parents=True) for x in ("data","metadata")]
PyArrowFileIO._initialize_fs=lambda self, scheme, netloc=None: sub if scheme=="hdfs" else orig(self,scheme,netloc)
a=make_catalog(d/"a")
make_table(a)
move(a,NAME,"hdfs://nn/wh/t"); commit(a,append(*write(a,ROW),properties={}))
make_table(a,name=OTHER)
f=[e for e in refs.own_references(load(a)) if e.endswith(".parquet")][0]
commit(a,append(data_file(f.replace("hdfs://nn/","hdfs://nn//")),properties={}),name=OTHER)
p=d/"hdfs"/f.removeprefix("hdfs://nn/")
print(f, p.exists())
drop_table(a,NAME)
print("after drop of t: the file of OTHER", p.exists())
