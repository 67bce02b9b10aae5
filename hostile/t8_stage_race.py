from common import *
from dbt.adapters.iceberg_stream.builds import staged as st
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
orig=st.write_new
def wn(*args):
    drop_table(a,NAME); return orig(*args)
st.write_new=wn
print("staged:", stage_table(a,NAME,"pr",{}))
s=staged_name(NAME,"pr"); print(a.relations("s"), missing(a,s))
make_table(a,name=OTHER); commit(a,append(*write(a,ROW,OTHER),properties={}),name=OTHER)
drop_table(a,OTHER)
