"""The artifact: a folder `name.pitc/` that holds a compiled model (`docs/artifact.md`).

folder.py    a folder that appears whole or not at all
weights.py   weights.bin: each distinct tensor once, aligned, shared by both graphs
manifest.py  manifest.json: what was built, from what, by what, and the checksum of every file
write.py     the files of one artifact
check.py     does this artifact run here, and what mends it when it does not
"""
