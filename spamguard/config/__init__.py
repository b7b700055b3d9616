"""The configuration: YAML to `options.Settings` and back, with every mistake at its line.

Workers import `options` (and what it stands on) only; `load`, `schema` and `checks` are for the
master process and the commands.
"""
