# SPDX-License-Identifier: BSD-2-Clause
"""Writes mrcd.8, mrcctl.1 and mrcd.toml.5 into a directory: manpages.py DIRECTORY (`make man`).

The text comes from the commands' help, the configuration's models and the example file. No option or key is named
here, so that the pages always match the commands.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

import mrcd
from mrcd.config.cluster_file import Config
from mrcd.ctl import glossary
from mrcd.ctl.main import cli
from mrcd.main import mrcd as daemon

EXAMPLE = Path(__file__).with_name("mrcd.toml")


def text(words: str) -> str:
    """Return plain text as roff, with markup characters escaped."""
    lines = words.replace("\\", r"\e").replace("-", r"\-").split("\n")
    return "\n".join(r"\&" + line if line.startswith((".", "'")) else line for line in lines)


def bold(words: str) -> str:
    """Return text in bold."""
    return rf"\fB{text(words)}\fR"


def heading(name: str, section: int, what: str) -> list[str]:
    """Return the title and the section NAME."""
    day = datetime.fromtimestamp(float(os.environ.get("SOURCE_DATE_EPOCH") or time.time()), UTC).date()
    title = f'.TH {text(name.upper())} {section} {day} "mrcd {mrcd.__version__}" "mrcd"'
    return [title, ".SH NAME", rf"{text(name)} \- {text(what)}"]


def paragraphs(help_text: str | None) -> Iterator[str]:
    """Yield a command's help as paragraphs. As in click, \\b starts one whose lines are not refilled."""
    for number, part in enumerate(re.split(r"\n\s*\n", (help_text or "").strip())):
        if number:
            yield ".PP"
        if part.startswith("\b"):
            yield from (".nf", text(part.removeprefix("\b").strip("\n")), ".fi")
        else:
            yield text(" ".join(part.split()))


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield a paragraph for each option, and each argument with help."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", bold(record[0]), text(record[1]))


def usage(command: click.Command, context: click.Context) -> str:
    """Return the command with its arguments."""
    pieces = " ".join(command.collect_usage_pieces(context))
    return rf"{bold(context.command_path)} {text(pieces)}"


def leaves(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield all subcommands without subcommands of their own, with their contexts."""
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is None or child.hidden:
            continue
        below = click.Context(child, info_name=name, parent=context)
        if isinstance(child, click.Group):
            yield from leaves(child, below)
        else:
            yield child, below


FILES = {
    "/etc/mrcd/mrcd.toml": "the cluster file ($MRCD_CONFIG)",
    "/etc/mrcd/secrets": "the secrets that authenticate packets",
    "/run/mrcd": "the control socket, the lock, and running.json for mrcctl while mrcd is down ($MRCD_RUN_DIR)",
    "/var/lib/mrcd": "denials.json and events.jsonl ($MRCD_STATE_DIR)",
    "/sys/fs/bpf/mrcd": "the pinned tables and programs",
}
EXAMPLES = {
    "mrcctl status": "what is wrong, and what this host does",
    "mrcctl paths --bad": "the EVs that are not in use, with the reason",
    "mrcctl trace h2": "where the failed EVs to h2 are broken, and what they have in common",
    "mrcctl events --since 1h --kind ev": "what has changed in the last hour",
    'mrcctl drain t1:1:2 --for 30m --reason "fan tray"': "empty a T1 without losing a packet, for half an hour",
    "mrcctl undrain t1:1:2": "use it again",
}


def listed(title: str, words: Mapping[str, str]) -> list[str]:
    """Return a section with a paragraph for each word and its meaning."""
    page = [f".SH {title}"]
    for word, meaning in words.items():
        page += [".TP", bold(word), text(f"{meaning[:1].upper()}{meaning[1:]}.")]
    return page


def command_page(command: click.Command, name: str, section: int, also: str, sections: Sequence[str] = ()) -> list[str]:
    """Return the page of a command with all its subcommands. `sections` are lines that follow them."""
    context = click.Context(command, info_name=name)
    first = (command.help or "").strip().partition("\n")[0].rstrip(".")
    page = [*heading(name, section, first), ".SH SYNOPSIS", usage(command, context)]
    page += [".SH DESCRIPTION", *paragraphs(command.help), ".SH OPTIONS", *options(command, context)]
    general = {str(p.name) for p in command.get_params(context)}
    below = list(leaves(command, context))
    if below:
        page += [".SH COMMANDS", "Each command also takes the options above."]
    for child, inner in below:
        page += [f".SS {text(inner.command_path)}", usage(child, inner), ".PP", *paragraphs(child.help)]
        child.params = [p for p in child.params if p.name not in general]
        child.add_help_option = False
        page += options(child, inner)
    return [*page, *sections, ".SH SEE ALSO", text(also)]


def kind(schema: dict[str, Any]) -> str:
    """Return a type in words, with its least and greatest value if it has them."""
    schema = schema.get("anyOf", [schema])[0]  # the others are null, or another notation
    if "enum" in schema:
        return " | ".join(f'"{word}"' for word in schema["enum"])
    if "items" in schema:
        return f"list of {kind(schema['items'])}"
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = "" if least is None else f", at least {least}" if most is None else f", {least} to {most}"
    return f"{schema['type']}{bounds}"


def comments(section: str) -> dict[str, str]:
    """Return the example file's comments by key of a section: behind a key, above it, or in the list above a header."""
    found: dict[str, str] = {}
    above: list[str] = []
    here = ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        header, key = re.match(r"\[+(\w+)\]+", line), re.match(r"(?:# )?(\w+) = .*?(?: # (.+))?$", line)
        if header:
            here = header[1]
        listed = [re.match(r"(\w+(?:, \w+)*) {2,}(.+)", words) for words in above] if header and here == section else []
        for match in filter(None, listed):
            found |= dict.fromkeys(match[1].split(", "), match[2])
        if key and here == section:
            lines = [key[2]] if key[2] else above
            if lines:
                found.setdefault(key[1], " ".join(lines))
        above = [*above, line.removeprefix("# ").strip()] if line.startswith("# ") and not key else []
    return found


def keys(section: str, model: dict[str, Any]) -> Iterator[str]:
    """Yield a paragraph for each key."""
    comment_by_key = comments(section)
    for name, schema in model["properties"].items():
        words = schema.get("description") or comment_by_key.get(name, "")
        default = "required" if name in model.get("required", ()) else f"default {shown(schema.get('default'))}"
        yield ".TP"
        yield f"{bold(name)} ({text(kind(schema))}; {text(default)})"
        yield text(words[:1].upper() + words[1:].rstrip(".") + "." if words else "(undocumented)")


def shown(value: Any) -> str:
    """Return a default as it is written in TOML."""
    if value is None or value == []:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def configuration_page() -> list[str]:
    """Return the page mrcd.toml(5)."""
    page = heading("mrcd.toml", 5, "the cluster file of mrcd")
    page += [".SH DESCRIPTION"]
    page += paragraphs(
        "One TOML file for all hosts of a cluster, by default /etc/mrcd/mrcd.toml. A host finds itself in it by its "
        "hostname. Unknown keys and overlapping prefixes are errors. `mrcctl config check FILE` lists all errors of a "
        "file at once."
    )
    schema = Config.model_json_schema()
    for name, section in schema["properties"].items():
        model = schema["$defs"][str(section.get("items", section)["$ref"]).rpartition("/")[2]]
        page += [f".SH {text(f'[[{name}]]' if 'items' in section else f'[{name}]')}"]
        page += [*paragraphs(model.get("description")), *keys(name, model)]
    page += [".SH EXAMPLE", ".nf", text(EXAMPLE.read_text(encoding="utf-8").rstrip()), ".fi"]
    return [*page, ".SH SEE ALSO", text("mrcd(8), mrcctl(1)")]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def main(directory: Path) -> None:
    """Write mrcd.8, mrcctl.1 and mrcd.toml.5 into DIRECTORY."""
    directory.mkdir(parents=True, exist_ok=True)
    files = listed("FILES", FILES)
    words = listed("EV STATES", glossary.STATES) + listed("REASONS", glossary.REASONS) + listed("DROPS", glossary.DROPS)
    pages = {
        "mrcd.8": command_page(daemon, "mrcd", 8, "mrcctl(1), mrcd.toml(5)", files),
        "mrcctl.1": command_page(
            cli, "mrcctl", 1, "mrcd(8), mrcd.toml(5)", [*words, *files, *listed("EXAMPLES", EXAMPLES)]
        ),
        "mrcd.toml.5": configuration_page(),
    }
    for name, page in pages.items():
        (directory / name).write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
