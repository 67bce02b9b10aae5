from common import *
# Drop: the version that is dropped is newer than the one whose tags are looked at (same cause as t4, t9), files of the newer leak
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW); folder=home(a)
ou=a._backend.unregister
def un(*x):
    a._backend.unregister=ou; props(a,NAME,{"gc.enabled":"false"}); return ou(*x)
a._backend.unregister=un
drop_table(a,NAME)
print("gc.enabled=false was committed before the drop; files left:", len(files(folder)))
