"""`spamguard help` and `spamguard completion`: the manual, and completion for shells.

`help` shows the help of a command, the options of the configuration, or a page of the
documentation, which the installation holds in `share/spamguard`. With --man it prints the source of
a man page (`manual`). `completion` prints a script that shtab makes from the parser.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

from spamguard.cli import arguments
from spamguard.errors import SpamguardError

OPTIONS_TOPIC = "spamguard.yaml"
PAGES = {
    "overview": "README.md",
    "mail-system": "config/README.md",
    "service": "systemd/README.md",
    "how-it-works": "spamguard/README.md",
    "measuring": "corpora/README.md",
    "contributing": "tests/README.md",
}
"""The pages of the documentation, by topic."""

SHELLS = ("bash", "zsh", "fish")

HELP_ABOUT = f"""\
Show a page of the manual. TOPIC is a command, {OPTIONS_TOPIC} (every option of the configuration),
or one of {", ".join(PAGES)}.

With --man: the source of the man page spamguard(1), or of spamguard.yaml(5) if that is the TOPIC.
"""
HELP_EXAMPLE = """\
  spamguard help learn
  spamguard help spamguard.yaml
  spamguard help mail-system | less
  spamguard help --man >/usr/local/share/man/man1/spamguard.1
  spamguard help --man spamguard.yaml >/usr/local/share/man/man5/spamguard.yaml.5"""

COMPLETION_ABOUT = """\
Print a script for completion in a shell. With it, the shell completes commands, options and files;
the examples show where it looks for such scripts.
"""
COMPLETION_EXAMPLE = """\
  spamguard completion bash >~/.local/share/bash-completion/completions/spamguard
  spamguard completion zsh >/usr/local/share/zsh/site-functions/_spamguard
  spamguard completion fish >~/.config/fish/completions/spamguard.fish"""


def add_help(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "help", run_help, HELP_ABOUT, HELP_EXAMPLE)
    about = "what to read about (default: the program and its commands)"
    parser.add_argument("topic", nargs="?", default="", metavar="TOPIC", help=about)
    parser.add_argument("--man", action="store_true", help="print the source of a man page")


def run_help(options: argparse.Namespace) -> int:
    """Print a page."""
    from spamguard.cli import main, manual

    topic: str = options.topic
    parser = main.build_parser()
    if options.man and topic not in {"", parser.prog, OPTIONS_TOPIC}:
        options.wrong_usage(f"there are man pages of {parser.prog} and {OPTIONS_TOPIC} only")
    if topic == OPTIONS_TOPIC:
        page = manual.options_manual()
        print(manual.to_roff(page) if options.man else manual.to_text(page), end="")
    elif options.man:
        print(manual.to_roff(manual.command_manual(parser, main.GROUPS)), end="")
    elif topic in PAGES:
        print(_documentation(PAGES[topic]), end="")
    elif topic in {"", parser.prog}:
        parser.print_help()
    elif topic in main.COMMANDS:
        manual.subparsers(parser)[topic].print_help()
    else:
        topics = ", ".join((OPTIONS_TOPIC, *PAGES))
        options.wrong_usage(f"no page of {topic!r}: name a command, or one of {topics}")
    return 0


def _documentation(name: str) -> str:
    """The text of a page: beside the package in its sources, else in the installation."""
    sources = Path(__file__).parents[2]
    shared = Path(sysconfig.get_path("data")) / "share" / "spamguard"
    file = (sources if (sources / "pyproject.toml").exists() else shared) / name
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise SpamguardError(f"{file}: the page is not installed ({error.strerror})") from error


def add_completion(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "completion", run_completion, COMPLETION_ABOUT, COMPLETION_EXAMPLE
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run_completion(options: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from spamguard.cli import main, manual

    parser = main.build_parser()
    for action in parser._actions:  # shtab skips what the help suppresses, here the commands
        if action.dest == "command":
            action.help = "command"
    for command in (parser, *manual.subparsers(parser).values()):
        for part in (*manual.subparsers(command).values(), command):
            part.description = (part.description or "").partition(".")[0]
            _complete_files(part)
    print(shtab.complete(parser, options.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Tell shtab which arguments are files or directories."""
    import shtab

    for action in parser._actions:  # argparse has no public list
        if action.type is arguments.parse_directory:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab reads it
        elif action.dest == "paths" or action.type in (
            arguments.parse_file,
            arguments.parse_stream,
        ):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
