from common import *
from dbt.adapters.iceberg_stream.builds import published_views as pv
from dbt.adapters.iceberg_stream.catalog.errors import CatalogError
# the table gets a commit between the look at it and its drop; then the view is refused
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
table=load(a); ou=a._backend.unregister
def un(*args):
    a._backend.unregister=ou
    insert(a,ROW); print("rows before drop", len(rows(a)))
    return ou(*args)
a._backend.unregister=un
def refuse(*x): raise CatalogError("no")
a._backend.put_view=refuse
pv._is_newer=lambda *x: False
try: pv._replace_table(a, table, {}, {}, None)
except CatalogError as e: print("refused", e)
print("rows after restore", len(rows(a)))
