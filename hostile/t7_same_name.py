from common import *
# metadata replaced under the same name
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
make_table(a,name=OTHER); make_table(a,name=("s","x"))
drop_table(a,("s","x"))
make_table(a,name=("s","x")); commit(a,append(*write(a,ROW,("s","x")),properties={}),name=("s","x")); drop_table(a,("s","x"))
print(len(refs._elsewhere))
# another writer: OTHER gets t's file, written under the same metadata name
old=load(a,OTHER).location
shared=[f for s in [load(a)] for f in refs.own_references(s) if f.endswith(".parquet")]
commit(a,append(data_file(shared[0]),properties={}),name=OTHER)
new=load(a,OTHER).location
os.replace(local_path(new), local_path(old))
a._backend._rows("update iceberg_tables set metadata_location=:o where table_name='other' and catalog_name=:catalog", o=old)
a._backend._last_written.clear()
print(missing(a,OTHER))
drop_table(a,NAME)
print("after",missing(a,OTHER))
