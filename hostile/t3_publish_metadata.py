from common import *
from dbt.adapters.iceberg_stream.builds.publish import publish
d=fresh(); a=make_catalog(d/"a")
make_table(a); insert(a,ROW)
stage_table(a, NAME, "pr", {})
s=staged_name(NAME,"pr")
commit(a, append(*write(a,ROW,s),properties={}), name=s)
a.register(OTHER, load(a,s).location)
print("before", missing(a,OTHER))
publish(a,"pr",{NAME:"table"}.items())
print("after", missing(a,OTHER), "published", missing(a,NAME))
