from common import *
from datetime import datetime, timezone, timedelta
from dbt.adapters.iceberg_stream.maintenance import orphans as o
# A table that was recovered by registering its metadata from the folder of removed files
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
t=load(a); now=lambda: datetime.now(timezone.utc)+timedelta(seconds=1)
p=local_path(t.metadata["location"]); f=write(a,ROW)[0]   # an uncommitted file
found=o.find_orphans(t, now(), [a]); o.remove_orphans(t, found)
r=o.removed_files(t); print([x.path[-60:] for x in r])
make_table(a,name=OTHER); commit(a,append(data_file("file://"+r[0].path),properties={}),name=OTHER)
print(missing(a,OTHER)); print(o.delete_removed(load(a), now(), [a])); print(missing(a,OTHER))
