from common import *
import threading
# clone tags the original, drop loaded it before that; drop unregisters, lists; clone registers and checks; drop deletes
d=fresh(); a=make_catalog(d/"a"); make_table(a); insert(a,ROW)
tagged, unregistered, listed, registered = (threading.Event() for _ in range(4))
orig_unreg=a._backend.unregister
loaded=threading.Event()
def unreg(*args):
    loaded.set(); tagged.wait(); r=orig_unreg(*args); return r
a._backend.unregister=unreg
orig_wr=dropmod.without_referenced
def wr(*args,**k):
    r=orig_wr(*args,**k); listed.set(); registered.wait(); return r
dropmod.without_referenced=wr
orig_add=clones._add_tag
def add(*args):
    loaded.wait(); orig_add(*args); tagged.set(); listed.wait()
clones._add_tag=add
t=threading.Thread(target=drop_table,args=(a,NAME)); t.start()
try:
    c=clone_table(a,NAME,("s","clone")); print("clone made:",c.name)
finally: registered.set(); t.join()
print(a.relations("s"), missing(a,("s","clone")))
