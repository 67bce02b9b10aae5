from common import *
import shutil
# A copy refers to /new/t; then /old/t is replaced by a symbolic link to /new/t, in a process that has compared before.
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
make_table(a,name=("s","x")); drop_table(a,("s","x"))   # any earlier drop in this process
old=local_path(load(a).metadata["location"]); new=d/"disk2"/"t"
new.parent.mkdir(); shutil.move(old,new); old.symlink_to(new)
# data file added to another table by its real path
from pyiceberg.manifest import DataFile
files_=[e for e in refs.own_references(load(a)) if e.endswith(".parquet")]
import copy
make_table(a,name=OTHER)
f=data_file("file://"+str(new/"data"/files_[0].rsplit("/",1)[1]))
commit(a,append(f,properties={}),name=OTHER)
print(missing(a,OTHER))
drop_table(a,NAME)
print("after", missing(a,OTHER))
