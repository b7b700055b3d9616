"""The command line: everything that the command `spamguard` does.

`main` knows which module holds which command, imports that module when the command is named, and
turns errors into one line and an exit status. Each other module holds a group of commands of
`--help`: `add_NAME` describes the arguments of a command, `run_NAME` runs it and returns the exit
status. `arguments` has the parsers and argument types that commands share, `common` has the filter,
the configuration, messages, output and errors. What a command does is in the rooms below; a command
reads arguments, calls them, and prints. No module here may import numpy, SQLite or a room that
loads them at its top, because `--help` reads all modules: such imports stand in the functions that
run. A command must never print to standard output what is not its answer, and never let an error
out as a traceback. Read `main` first, then `judge`.
"""
