"""`completion`: a script that shtab makes from the parser, so that shells complete commands."""

from __future__ import annotations

import argparse

from spamguard.cli import arguments
from spamguard.cli.arguments import argument, command

SHELLS = ("bash", "zsh", "fish")


@command(
    "completion",
    """\
Print a script for completion in a shell. With it, the shell completes commands, options and files;
the examples show where it looks for such scripts.
""",
    argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS)),
    example="""\
  spamguard completion bash >~/.local/share/bash-completion/completions/spamguard
  spamguard completion zsh >/usr/local/share/zsh/site-functions/_spamguard
  spamguard completion fish >~/.config/fish/completions/spamguard.fish""",
)
def run_completion(options: argparse.Namespace) -> int:
    import shtab

    parser = build_listed_parser()
    file_types = (arguments.parse_file, arguments.parse_stream)
    for each in (parser, *_subparsers(parser).values()):
        for part in (*_subparsers(each).values(), each):
            part.description = (part.description or "").partition(".")[0]
            for action in part._actions:  # argparse has no public list
                if action.type is arguments.parse_directory:
                    action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab reads it
                elif action.dest == "paths" or action.type in file_types:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def build_listed_parser() -> argparse.ArgumentParser:
    """Return the parser for shtab and argparse-manpage, which skip what the help suppresses.

    That is the argument COMMAND, whose choices the help lists by purpose instead.
    """
    parser = arguments.build_parser()
    for action in parser._actions:
        if action.dest == "command":
            action.help = "command"
    return parser


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands or actions, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
