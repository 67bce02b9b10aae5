from common import *
d=fresh(); c=make_catalog(d/"c"); make_table(c); insert(c,ROW)
for i in range(5): setp(c, x=str(i))
c.register(OTHER, load(c).location)
props(c, OTHER, {"write.metadata.path": f"file://{d}/meta"}); setp(c, OTHER, y="1")
print("copy at", load(c,OTHER).location, missing(c,OTHER))
for i in range(30): setp(c, x=str(i))
print("copy refers to removed:", len(missing(c, OTHER)), missing(c,OTHER)[:1])
