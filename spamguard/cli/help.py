"""`help` and `completion`: the manual, and completion for shells.

`help` shows the help of a command, the options of the configuration, or a page of the
documentation. With --man it prints the source of
a man page. `completion` prints a script that shtab makes from the parser.

The pages spamguard(1) and spamguard.yaml(5) are a `Manual`, a list of blocks made from the parsers
and the options; `to_text` shows it on a terminal, `to_roff` makes the source of a man page. Every
sentence about a command stands in its parser, every sentence about an option in `config.options`:
none may be repeated here. Own code, because argparse-manpage knows parsers only, and the page of
options needs a writer too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import textwrap
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from spamguard import __version__
from spamguard.cli import arguments
from spamguard.web.documentation import PAGES, read_shared_file

OPTIONS_TOPIC = "spamguard.yaml"
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
    topic: str = options.topic
    parser = arguments.build_parser()
    if options.man and topic not in {"", parser.prog, OPTIONS_TOPIC}:
        options.wrong_usage(f"there are man pages of {parser.prog} and {OPTIONS_TOPIC} only")
    if topic == OPTIONS_TOPIC:
        page = options_manual()
        print(to_roff(page) if options.man else to_text(page), end="")
    elif options.man:
        print(to_roff(command_manual(parser, arguments.GROUPS)), end="")
    elif topic in PAGES:
        print(read_shared_file(PAGES[topic]), end="")
    elif topic in {"", parser.prog}:
        parser.print_help()
    elif topic in arguments.COMMANDS:
        subparsers(parser)[topic].print_help()
    else:
        topics = ", ".join((OPTIONS_TOPIC, *PAGES))
        options.wrong_usage(f"no page of {topic!r}: name a command, or one of {topics}")
    return 0


def add_completion(commands: arguments.Commands) -> None:
    parser = arguments.add_command(
        commands, "completion", run_completion, COMPLETION_ABOUT, COMPLETION_EXAMPLE
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run_completion(options: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    parser = arguments.build_parser()
    file_types = (arguments.parse_file, arguments.parse_stream)
    for action in parser._actions:  # shtab skips what the help suppresses, here the commands
        if action.dest == "command":
            action.help = "command"
    for command in (parser, *subparsers(parser).values()):
        for part in (*subparsers(command).values(), command):
            part.description = (part.description or "").partition(".")[0]
            for action in part._actions:  # argparse has no public list
                if action.type is arguments.parse_directory:
                    action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab reads it
                elif action.dest == "paths" or action.type in file_types:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


_COLUMNS = 100
_SOURCE_COLUMNS = 56
_FIRST_OPTION_LINE = """\
The configuration of spamguard(1): where mail comes in and goes on, what is done about it, and whose
folders teach. It is YAML, and only what differs from the defaults needs to be said. `spamguard
check` reports every mistake with its line, or prints the settings in force."""
_UNITS = """\
Durations are written 30s, 10m, 2h or 1d; sizes 64MiB (2**20 bytes each), 20MB (millions), 512KiB or
100B. `spamguard check --schema` prints the same options as a JSON Schema for editors, and `kill
-HUP` or `systemctl reload` makes a running daemon read the file again."""
_EXAMPLE = """\
state: /var/lib/spamguard
user: spamguard
listeners:
  - listen: smtp://127.0.0.1:10025
    position: after-queue
    next_hop: smtp://127.0.0.1:10026
watch: [/home/*/Maildir]"""


class Block(NamedTuple):
    """A part of a manual: its kind (section, subsection, text, verbatim, item), its text, and for
    an item what the text is about.
    """

    kind: str
    text: str
    term: str = ""


class Manual(NamedTuple):
    name: str
    section: int
    about: str
    blocks: tuple[Block, ...]


# ---- spamguard(1)


def command_manual(
    parser: argparse.ArgumentParser, groups: Mapping[str, Mapping[str, str]]
) -> Manual:
    """The page of the program and its commands, by purpose."""
    commands = subparsers(parser)
    about, _, intro = (parser.description or "").partition("\n\n")
    blocks = [
        Block("section", "SYNOPSIS"),
        Block("text", _usage(parser)),
        Block("section", "DESCRIPTION"),
        *_paragraphs(f"{about}\n\n{intro.partition(chr(10) * 2)[0]}"),
        Block("section", "OPTIONS"),
        *_arguments(parser),
    ]
    for title, names in groups.items():
        blocks.append(Block("section", f"COMMANDS: {title.upper()}"))
        for name in names:
            command = commands[name]
            blocks += [Block("subsection", name), Block("text", _usage(command))]
            blocks += _paragraphs(command.description or "")
            blocks += _arguments(command)
            blocks += (
                Block("item", action.description or "", f"{each}: {_usage(action)}")
                for each, action in subparsers(command).items()
            )
            for _, example in _headed(command.epilog or ""):
                blocks += [Block("text", "Example:"), Block("verbatim", example)]
    epilog = dict(_headed(parser.epilog or ""))
    blocks += [
        Block("section", "EXIT STATUS"),
        Block("verbatim", epilog["exit status"]),
        Block("section", "EXAMPLES"),
        Block("verbatim", epilog["examples"]),
        Block("section", "SEE ALSO"),
        Block("text", "spamguard.yaml(5)"),
    ]
    return Manual("spamguard", 1, "a spam filter that learns from moved mail", tuple(blocks))


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's commands or actions, by name."""
    for action in parser._actions:  # argparse has no public list
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _usage(parser: argparse.ArgumentParser) -> str:
    return " ".join(parser.format_usage().removeprefix("usage: ").split())


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Block]:
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:
        is_listed = action.help is not argparse.SUPPRESS and "--help" not in action.option_strings
        if is_listed and not isinstance(action, argparse._SubParsersAction):
            term = formatter._format_action_invocation(action)  # as the help has it
            yield Block("item", formatter._expand_help(action) if action.help else "", term)


def _paragraphs(text: str) -> Iterator[Block]:
    """Paragraphs; lines that begin with a blank stay as they are."""
    for part in text.strip("\n").split("\n\n"):
        for is_list, group in groupby(part.splitlines(), lambda line: line.startswith(" ")):
            lines = list(group)
            yield Block("verbatim", "\n".join(lines)) if is_list else Block("text", " ".join(lines))


def _headed(text: str) -> Iterator[tuple[str, str]]:
    """The parts of an epilog: a line with a colon, and the lines below it."""
    for part in text.split("\n\n"):
        title, _, lines = part.partition(":\n")
        yield title, lines


# ---- spamguard.yaml(5)


def options_manual() -> Manual:
    """The page of the configuration file."""
    from spamguard.config import schema

    layout = schema.schema_for_editors()
    blocks = [
        Block("section", "DESCRIPTION"),
        Block("text", _FIRST_OPTION_LINE),
        Block("text", _UNITS),
        Block("section", "OPTIONS"),
        *_options(layout, layout["$defs"], ""),
        Block("section", "FILES"),
        Block("item", "Where the systemd units expect it.", "/etc/spamguard/spamguard.yaml"),
        Block("section", "EXAMPLES"),
        Block("verbatim", _EXAMPLE),
        Block("section", "SEE ALSO"),
        Block("text", "spamguard(1)"),
    ]
    return Manual("spamguard.yaml", 5, "configuration of spamguard", tuple(blocks))


def _options(part: dict[str, Any], groups_by_name: dict[str, Any], path: str) -> Iterator[Block]:
    """The options of one group, then its groups, each under its path in the file."""
    groups = []
    for key, option in part["properties"].items():
        text = f"{option['description']}."
        if choices := option.get("enum"):
            text += f" One of: {', '.join(map(str, choices))}."
        if key in part.get("required", ()):
            text += " Required."
        elif "default" in option:
            text += f" Default: {json.dumps(option['default'], ensure_ascii=False)}."
        yield Block("item", text, key)
        if (name := _group(option)) is not None:
            groups.append((f"{path}{key}", option["description"], groups_by_name[name]))
    for place, about, group in groups:
        yield Block("subsection", place)
        yield Block("text", f"{about}.")
        yield from _options(group, groups_by_name, f"{place}: ")


def _group(option: dict[str, Any]) -> str | None:
    """The name of the group that an option holds, alone or in a list."""
    if "$ref" in option:
        return str(option["$ref"]).rpartition("/")[2]
    inner = [*option.get("anyOf", ()), *([option["items"]] if "items" in option else ())]
    return next((name for kind in inner if (name := _group(kind)) is not None), None)


# ---- as text, and as the source of a man page


def to_text(manual: Manual) -> str:
    """The page for a terminal."""
    parts = [f"{manual.name}({manual.section}): {manual.about}"]
    for block in manual.blocks:
        if block.kind == "item":
            parts.append(f"  {block.term}\n{_fill(block.text, '      ')}")
        elif block.kind == "verbatim":
            parts.append(textwrap.indent(block.text, "  "))
        else:
            parts.append(_fill(block.text, "") if block.kind == "text" else block.text)
    return "\n\n".join(parts) + "\n"


def _fill(text: str, indent: str) -> str:
    return textwrap.fill(text, _COLUMNS, initial_indent=indent, subsequent_indent=indent)


def to_roff(manual: Manual) -> str:
    """The source of a man page, in the macros of man(7)."""
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    day = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    lines = [
        f'.TH {manual.name.upper()} {manual.section} {day} "spamguard {__version__}"',
        ".SH NAME",
        f"{_roff(manual.name)} \\- {_roff(manual.about)}",
    ]
    after_heading = False
    for block in manual.blocks:
        is_filled = block.kind in {"text", "item"}
        text = _roff(textwrap.fill(block.text, _SOURCE_COLUMNS) if is_filled else block.text)
        if block.kind in {"section", "subsection"}:
            lines.append(f"{'.SH' if block.kind == 'section' else '.SS'} {text}")
        elif block.kind == "item":
            lines += [".TP", f".B {_roff(block.term)}", text or "\\&"]
        else:
            lines += [] if after_heading else [".PP"]
            lines += [".nf", text, ".fi"] if block.kind == "verbatim" else [text]
        after_heading = block.kind in {"section", "subsection"}
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Text without the characters that roff takes for commands. A blank line would be a fault."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    text = re.sub(r"^(?=[.'])", r"\\&", text, flags=re.M).replace("`", "\\(ga")
    return re.sub(r"\n\s*\n", "\n.PP\n", text).replace('"', "\\(dq")
