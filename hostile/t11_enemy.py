from common import *
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
make_table(a,name=OTHER)
inflight=write(a,ROW,OTHER)   # another writer's uncommitted file
w=d/"a"/"warehouse"
move(a,NAME,f"file://{w}")
props(a,NAME,{"iceberg-stream.x":json.dumps([inflight[0].file_path, f"file://{w}/catalog.db"])})
drop_table(a,NAME)
print("catalog.db", (w/"catalog.db").exists(), "in flight", local_path(inflight[0].file_path).exists())
