# SPDX-License-Identifier: BSD-2-Clause
"""Checks README.md and docs/: links, paths, commands, and lists that repeat what the code says."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pydantic import BaseModel

from labkit.bench.cli import bench
from labkit.cluster.cli import lab
from labkit.demo.cli import demo
from labkit.demo.training import demo_training
from labkit.kernels.cli import kernels
from labkit.screenshots.cli import screenshots
from mrcd.config.cluster_file import Config
from mrcd.ctl.main import cli
from mrcd.kernel.abi import ABI_VERSION, WIRE_VERSION
from mrcd.kernel.enums import Drop
from mrcd.main import mrcd
from tests.lab.fault_table import CASES
from tests.lab.test_docs_commands import SYNOPSES
from tests.lists import compare
from tests.pages import DOCS, PAGES, README, ROOT, blocks, prose, spans, synopses

README_LINES = 120
ENUMS = "mrcd/kernel/enums.py"

COMMANDS: dict[str, click.Command] = {
    "mrcctl": cli,
    "mrcd": mrcd,
    "scripts/lab": lab,
    "scripts/bench": bench,
    "scripts/demo": demo,
    "scripts/demo-training": demo_training,
    "scripts/kernels": kernels,
    "scripts/screenshots": screenshots,
}
PASSED_ON = {"BENCH": "scripts/bench", "KERNELS": "scripts/kernels test", "NICS": "scripts/kernels nics"}  # by make
SHELL_ENDS = {"&&", "||", "|", ";", "&", ">", "2>"}

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)
PATH = re.compile(r"(?:bpf|mrcd|scripts|tests|docs|LICENSES|\.ci)/[\w./-]*")
BARE_FILE = re.compile(r"[\w-]+(?:\.bpf\.c|\.h|\.py)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links: lower case, spaces as dashes, no punctuation."""
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in HEADING.findall(prose(page))}


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command line of a page: in code blocks, a line; in prose, what is in backticks."""
    lines = [line for _, block in blocks(page) for line in block.splitlines()] + spans(page)
    for line in lines:
        try:
            words = shlex.split(line.replace("…", "").replace(";", " ; ").rstrip(), comments=True)
        except ValueError:  # a drawing, or half a sentence
            continue
        rest: list[str] = []
        for word in [*words, ";"]:
            if word in SHELL_ENDS or (word == "--" and rest[:1] and rest[0] in COMMANDS):
                if rest:
                    yield rest
                rest = []
            else:
                rest.append(word)


def complaint(words: list[str]) -> str | None:
    """Why a command line cannot be one of ours; None if it can. Placeholders (N, FILE, [--peer P]) count as values."""
    command, context = COMMANDS[words[0]], None
    arguments = [w.strip("[]") for w in words[1:]]
    arguments = [w for w in arguments if w]
    context = click.Context(command, info_name=words[0], **command.context_settings)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        found = command.get_command(context, arguments[0])
        if found is None:
            return None if arguments[0].isupper() else f"no command {arguments[0]!r}"
        command, context, arguments = found, click.Context(found, parent=context), arguments[1:]
    known = {name for p in command.get_params(context) for name in (*p.opts, *p.secondary_opts)}
    unknown = [w.partition("=")[0] for w in arguments if w.startswith("-") and w.partition("=")[0] not in known]
    if unknown:
        return f"no option {unknown[0]}"
    choices = [
        p.type.choices for p in command.params if isinstance(p, click.Argument) and isinstance(p.type, click.Choice)
    ]
    if choices and arguments and not arguments[0].startswith("-") and not re.search("[A-Z|]", arguments[0]):
        wrong = [] if arguments[0] in choices[0] else [arguments[0]]
        return f"no value {wrong[0]!r}" if wrong else None
    return None


def make_complaint(words: list[str]) -> str | None:
    """The same for make: targets and variables of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", text, re.M))
    variables = set(re.findall(r"^([A-Z_]+) *\??:?=", text, re.M))
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if name not in (variables if equals else targets):
            return f"no {'variable' if equals else 'target'} {name!r}"
        if name in PASSED_ON and (why := complaint([*PASSED_ON[name].split(), *value.split()])):
            return why
    return None


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", DOCS, ids=lambda p: p.name)
def test_a_page_opens_with_its_readers(page: Path) -> None:
    title, empty, first, *_ = page.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert not empty
    assert re.match(r"For [a-z]", first), first


@pytest.mark.parametrize("page", DOCS, ids=lambda p: p.name)
def test_the_readme_links_every_page(page: Path) -> None:
    assert f"](docs/{page.name})" in README.read_text(encoding="utf-8")


@each_page
def test_code_blocks_name_their_language(page: Path) -> None:
    """tests/lab/test_docs_commands.py runs the lines in sh, tests/lab/test_image.py whole blocks in bash."""
    assert page.read_text(encoding="utf-8").count("\n```") == 2 * len(blocks(page))
    assert {language for language, _ in blocks(page)} <= {"bash", "sh", "text", "toml", "yaml"}


@each_page
def test_relative_links_resolve(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@each_page
def test_pictures_exist_and_have_words(page: Path) -> None:
    for words, name in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", prose(page)):
        assert words, name
        assert (page.parent / name).exists(), name


@each_page
def test_paths_in_backticks_exist(page: Path) -> None:
    for span in spans(page):
        word = span.partition(" ")[0]
        if PATH.fullmatch(word):
            assert (ROOT / word).exists(), span
        elif page.name in ("architecture.md", "hacking.md") and BARE_FILE.fullmatch(span):
            assert any(any((ROOT / d).glob(f"**/{span}")) for d in ("bpf", "mrcd", "scripts", "tests")), span


@each_page
def test_paths_in_drawings_exist(page: Path) -> None:
    for _, block in blocks(page):
        for word in re.findall(r"(?<![\w./-])(?:bpf|mrcd|scripts|tests|docs)/[\w./-]+\.\w+", block):
            assert (ROOT / word).exists(), word
        if page.name == "architecture.md":
            for word in re.findall(r"(?<![\w/])\w+\.py\b", block):
                assert any((ROOT / "mrcd").rglob(word)), word


def test_functions_in_drawings_exist() -> None:
    found = [
        (path, name.strip())
        for _, block in blocks(ROOT / "docs/architecture.md")
        for path, names in re.findall(r"([\w./-]+\.(?:c|h|py)): (\w+(?:, \w+)*)", block)
        for name in names.split(",")
    ]
    assert found
    for path, name in found:
        defines = (
            rf"^ *(?:async )?(?:def|class|struct) {name}\b"
            if path.endswith(".py")
            else rf"^[^/\s#].*\b{name}(?:\(| \{{)"
        )
        assert re.search(defines, (ROOT / path).read_text(encoding="utf-8"), re.M), f"{path}: {name}"


def test_every_package_of_mrcd_is_listed_below_those_that_import_it() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    order = re.findall(r"^\| `mrcd/(\w+)/` \|", text, re.M)
    assert sorted(order) == sorted(p.parent.name for p in (ROOT / "mrcd").glob("*/__init__.py"))
    for place, name in enumerate(order):
        code = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "mrcd" / name).rglob("*.py"))
        imported = {m for m in re.findall(r"(?:from|import) mrcd\.(\w+)", code) if m in order}
        assert imported <= set(order[place:]), name


@pytest.mark.parametrize("directory", ["tests", "scripts/labkit"])
def test_every_directory_is_listed(directory: str) -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    found = {p.name for p in (ROOT / directory).iterdir() if p.is_dir() and any(p.glob("*.py"))}
    listed = re.findall(rf"^\| `{directory}/(\w+)/` \|", text, re.M)
    compare(listed, sorted(found), in_file="docs/architecture.md", known_from=directory)


def test_headers_include_only_later_ones_of_the_table() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    order = [h for row in re.findall(r"^\| (`\w+\.h`.*?) \|", text, re.M) for h in re.findall(r"`(\w+\.h)`", row)]
    headers = {h.name: h for h in (ROOT / "bpf").glob("*.h")}
    assert sorted(order) == sorted(headers)
    for place, name in enumerate(order):
        included = re.findall(r'^#include "(.+)"', headers[name].read_text(encoding="utf-8"), re.M)
        assert set(included) <= set(order[place + 1 :]), name


@each_page
def test_commands_exist(page: Path) -> None:
    for words in commands(page):
        if words[0] in COMMANDS:
            assert complaint(words) is None, f"{' '.join(words)}: {complaint(words)}"
        elif words[0] == "make":
            assert make_complaint(words) is None, f"{' '.join(words)}: {make_complaint(words)}"
        elif words[0].startswith("scripts/"):
            assert (ROOT / words[0]).exists(), words


def test_the_table_of_mrcctl_is_complete() -> None:
    """Each command of mrcctl has a row, and each row has only commands and options that there are."""
    listed, known = set(), set(cli.list_commands(click.Context(cli)))
    for row in synopses():
        code = row.split("`")[1::2]
        options = [w for c in code for w in shlex.split(c) if not re.match("[a-z]", w)] if len(code) == 2 else []
        for c in code:
            words = shlex.split(c)
            if not re.match("[a-z]", words[0]) or words[0] not in known:
                continue
            listed.add(words[0])
            assert complaint(["mrcctl", *words, *options]) is None, complaint(["mrcctl", *words, *options])
    compare(listed, known, in_file="docs/mrcctl.md", known_from="_MODULES in mrcd/ctl/main.py")


def test_every_row_of_mrcctl_s_table_is_run_in_the_lab() -> None:
    compare(SYNOPSES, synopses(), in_file="SYNOPSES in tests/lab/test_docs_commands.py", known_from="docs/mrcctl.md")


def keys(model: type[BaseModel]) -> Iterator[str]:
    """Every key of a model of the cluster file, and of the models within."""
    for name, field in model.model_fields.items():
        yield name
        inner = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in inner:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys(kind)


def test_every_key_of_the_cluster_file_is_listed() -> None:
    text = (ROOT / "docs/cluster-file.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", text)) | set(re.findall(r"`\[+(\w+)\]+`", text))
    missing = set(keys(Config)) - listed
    assert not missing, f"docs/cluster-file.md: add {', '.join(sorted(missing))} of mrcd/config/cluster_file.py"


def test_every_drop_reason_is_listed() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:push|probe|pop|host) \|", text, re.M)
    reasons = (reason.text for reason in Drop if reason is not Drop.NONE)
    compare(
        rows, reasons, in_file="docs/troubleshooting.md (drop reasons)", known_from=f"Drop in {ENUMS}", ordered=True
    )


def test_every_alert_is_listed() -> None:
    rules = (ROOT / "scripts/deploy/prometheus/alerts.yml").read_text(encoding="utf-8")
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    found = [(a, s) for a, s in re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", rules, re.S)]
    rows = re.findall(r"^\| `(Mrc\w+)` \|[^|]+\| (\w+) \|", text, re.M)
    listed, known = ([f"{alert} ({severity})" for alert, severity in pairs] for pairs in (rows, found))
    compare(listed, known, in_file="docs/metrics.md", known_from="scripts/deploy/prometheus/alerts.yml", ordered=True)


def test_alerts_that_a_fault_fires_are_listed() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    listed = text.split("fault there fires")[1].split(";")[0]
    fired = {name.split()[0] for case in CASES for name in case.alerts}
    defined = set(re.findall(r"- alert: (\w+)", (ROOT / "scripts/deploy/prometheus/alerts.yml").read_text()))
    compare(
        sorted(set(re.findall(r"`(Mrc\w+)`", listed))),
        sorted(defined - fired),
        in_file="docs/metrics.md (alerts that no fault fires)",
        known_from="scripts/deploy/prometheus/alerts.yml, less those of tests/lab/fault_table.py",
    )


def test_versions_are_today() -> None:
    assert f"`/sys/fs/bpf/mrcd/abi{ABI_VERSION}`" in (ROOT / "docs/host-changes.md").read_text(encoding="utf-8")
    assert f"| 1 | `version` | {WIRE_VERSION}; " in (ROOT / "docs/wire-format.md").read_text(encoding="utf-8")
