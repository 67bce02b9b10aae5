from common import *
from dbt.adapters.iceberg_stream.maintenance.retention import expirable_snapshots
import time
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
clone_table(a,NAME,("s","clone")); stage_table(a,("s","clone"),"pr",{})
replace(a,ROW); drop_table(a,("s","clone"))
s=staged_name(("s","clone"),"pr")
print(a.relations("s"), list(load(a).metadata["refs"]), "staged needs", load(a,s).metadata["current-snapshot-id"], "expirable", expirable_snapshots(load(a).metadata,int(time.time()*1000)+10*86400000))
