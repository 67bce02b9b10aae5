from common import *
from datetime import datetime, timezone, timedelta
from dbt.adapters.iceberg_stream.maintenance import orphans as o
import shutil
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
make_table(a,name=OTHER)
loc=local_path(load(a).metadata["location"])
move(a,OTHER,f"file://{loc}/inner"); 
f=write(a,ROW,OTHER)   # another table's write that still runs
later=datetime.now(timezone.utc)+timedelta(seconds=1)
print("plain:", [x.location for x in o.find_orphans(load(a),later,[a])])
new=d/"disk2"/"t"; new.parent.mkdir(); shutil.move(loc,new); loc.symlink_to(new)
import dbt.adapters.iceberg_stream.catalog.locations as L; L._resolved_folder.cache_clear()
print("home is a link:", [x.location for x in o.find_orphans(load(a),later,[a])])
