"""The configuration: YAML to `options.Settings` and back, with every mistake at its line.

`options` has every option once: its type, default and meaning, under the name that it has in the
file. `types` and `values` are the kinds of values they take. `load` reads a file, knows the line
and column of each value, and reports all mistakes at once. `schema` is what a file may say: which
options a group has, and which contradict each other. Workers import `options`, `types` and `values`
only; the rest is for the master and the commands. Must never guess: an unknown key is an error,
with the likely meaning. Read `options` first.
"""
