# SPDX-License-Identifier: BSD-2-Clause
"""Checks the structure of mrcd/: packages import downwards only, without circles; one version of documents."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mrcd

MRCD = Path(__file__).parents[2] / "mrcd"
LAYERS = (
    "clock errors file_thread heap lock_file partial_imports timed_wait versions|state_dir config|fabric|kernel|auth"
    "|probes net|health|view|denials|fleet|daemon|api|main|planner fleet_links fleet_check prometheus|ctl"
)
LEVELS = {name: level for level, names in enumerate(LAYERS.split("|")) for name in names.split()}
FORBIDDEN = {("ctl", "mrcd.daemon.daemon")}  # mrcctl works without the daemon's code
NOT_THE_HOSTS = ("mrcd.planner", "mrcd.fleet_links", "mrcd.fleet_check", "mrcd.prometheus")  # need no mrcd on the host


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(MRCD.parent).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(path): path for path in sorted(MRCD.rglob("*.py"))}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in FILES.items()}


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yields the modules of mrcd that a module imports, also those inside functions."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"relative import in line {node.lineno}"
            qualified = [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
            names = [name if name in FILES else module for name, module in qualified]
        yield from (name for name in names if name.startswith("mrcd."))


IMPORTS = {module: set(imports_of(tree)) for module, tree in TREES.items() if module != "mrcd"}


def package_of(module: str) -> str:
    return module.split(".")[1]


def test_packages_import_downwards_only() -> None:
    faults = [
        f"{FILES[module].relative_to(MRCD.parent)} imports {imported}"
        for module, found in IMPORTS.items()
        for imported in sorted(found)
        if LEVELS[package_of(imported)] > LEVELS[package_of(module)] or (package_of(module), imported) in FORBIDDEN
    ]
    assert not faults, "\n".join(faults)


def test_no_modules_import_each_other() -> None:
    try:
        graphlib.TopologicalSorter(IMPORTS).prepare()
    except graphlib.CycleError as e:
        raise AssertionError(f"modules import each other: {' ← '.join(e.args[1])}") from None


def test_each_package_has_a_level() -> None:
    assert {package_of(module) for module in IMPORTS} <= LEVELS.keys()


@pytest.mark.parametrize("program", ["mrcd.main", "mrcd.ctl.commands.status"])
def test_what_is_not_the_hosts_is_not_loaded_there(program: str) -> None:
    found = f"import sys, {program}; print(*(m for m in sys.modules if m.startswith({NOT_THE_HOSTS})))"
    done = subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True, cwd=MRCD.parent)
    assert not done.stdout.split()


_OF_ITS_OWN = re.compile(r"""^SCHEMA_VERSION\b[^=\n]*=|["']schema_version["']: *\d""", re.MULTILINE)


def test_all_documents_have_one_schema_version() -> None:
    """A reader of --json checks one number, for every command."""
    sources = Path(mrcd.__file__).parent.rglob("*.py")
    assert [p.name for p in sources if _OF_ITS_OWN.search(p.read_text())] == ["versions.py"]
