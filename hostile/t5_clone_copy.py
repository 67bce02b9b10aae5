from common import *
from dbt.adapters.iceberg_stream.maintenance.retention import expirable_snapshots
import time
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
clone_table(a,NAME,("s","clone"))
a.register(("s","clone2"), load(a,("s","clone")).location)
replace(a,ROW)
print("tags", list(load(a).metadata["refs"]))
drop_table(a,("s","clone"))
print("after drop of one name: tags", list(load(a).metadata["refs"]), a.relations("s"))
print("clone2 missing", missing(a,("s","clone2")))
m=load(a).metadata
print("expirable in 10 days", expirable_snapshots(m,int(time.time()*1000)+10*86400000), "clone2's snapshot", load(a,("s","clone2")).metadata["current-snapshot-id"])
