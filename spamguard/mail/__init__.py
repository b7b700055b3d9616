"""From the bytes of a message to its features, and changes to its header.

A message goes one way: `mime` finds its parts and `headers` its fields; `decode`, `html` and `text`
turn these into the text that a reader sees; `content` lays them out as sections, with traits and
numbers beside them; `extract` hashes these and is the way in for the rooms above. `message` names
whole messages by their digest, puts fields on top of them and finds messages within them.

All of it is pure: bytes and a key in, numbers and bytes out. It reads hostile input, so nothing
here may raise, recurse, fetch anything, or take more than linear time. A change of one bit in a
feature makes every lesson learnt so far worth less. Read `extract` first.
"""
