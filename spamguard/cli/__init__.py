"""The command line: everything that the command `spamguard` does.

`main` knows which module holds which command, imports that module when the command is named, and
turns errors into one line and an exit status. A module of commands has `add_NAME`, which describes
the arguments of a command, and `run_NAME`, which runs it and returns the exit status. `arguments`
has the parsers and argument types that commands share, `common` the filter, the configuration,
messages, progress and output. What a command does is in the rooms below: a command reads arguments,
calls them, and prints. A module of commands must never import numpy, SQLite or a room that loads
them at its top, because `--help` reads all of these modules; such imports stand in the functions
that run. A command must never print to standard output what is not its answer, and never let an
error out as a traceback. Read `main` first, then `judge`.
"""
