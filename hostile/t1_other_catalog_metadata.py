from common import *
# A registered copy in another catalog of the profile; our own commits to the original
d=fresh(); a=make_catalog(d/"a"); b=make_catalog(d/"b")
make_table(a); insert(a,ROW)
from dbt.adapters.iceberg_stream.catalog.backend import TABLE_DEFAULTS
print(load(a).metadata["properties"])
b.register(OTHER, load(a).location)
for i in range(30): setp(a, x=str(i))
print("copy in other catalog:", missing(b, OTHER))
# same catalog, copy with write.metadata.path elsewhere
c=make_catalog(d/"c"); make_table(c); insert(c,ROW)
for i in range(5): setp(c, x=str(i))
c.register(OTHER, load(c).location)
props(c, OTHER, {"write.metadata.path": f"file://{d}/meta"})
for i in range(30): setp(c, x=str(i))
print("same catalog, copy's metadata elsewhere:", missing(c, OTHER))
