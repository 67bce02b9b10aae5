from common import *
# staged table's discard when the published table was dropped in between (kill), then again
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
stage_table(a,NAME,"pr",{}); s=staged_name(NAME,"pr")
drop_table(a,NAME); print("staged after drop of published", missing(a,s))
drop_table(a,s); print(a.relations("s"))
