from common import *
# re-staging discards the staged table's files without looking at the profile's other catalogs
d=fresh(); a=make_catalog(d/"a"); b=make_catalog(d/"b")
make_table(a); insert(a,ROW)
cats=Catalogs("lake",{"lake":lambda:a,"other":lambda:b})
stage_table(a, NAME, "pr", {})
s=staged_name(NAME,"pr")
commit(a, append(*write(a,ROW,s),properties={}), name=s)
b.register(OTHER, load(a,s).location)
print("before", missing(b,OTHER))
insert(a,ROW)   # another writer: staged anew
stage_table(a, NAME, "pr", {})
print("after", missing(b,OTHER))
