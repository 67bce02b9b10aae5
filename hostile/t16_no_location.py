from common import *
import dataclasses
# a catalog that answers without metadata-location (optional in the REST protocol)
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
b=make_catalog(d/"b"); make_table(b,name=OTHER)
shared=[e for e in refs.own_references(load(a)) if e.endswith(".parquet")][0]
commit(b,append(data_file(shared),properties={}),name=OTHER)
ob=b._backend.load
b._backend.load=lambda *x,**k: (lambda t: t and dataclasses.replace(t,location=None))(ob(*x,**k))
drop_table(a,NAME,Catalogs("lake",{"lake":lambda:a,"other":lambda:b}))
print(local_path(shared).exists())
