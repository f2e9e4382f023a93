# SPDX-License-Identifier: BSD-2-Clause
"""Checks the structure of mrcd/: packages import downwards only, without circles; files and classes stay small."""

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

MRCD = Path(__file__).parents[2] / "mrcd"
LAYERS = (
    "errors heap lock_file versions|config|bpf|tables|auth|fabric|loader|net|health|view|denials|fleet|daemon|api|main"
    "|ctl"
)
LEVELS = {name: level for level, names in enumerate(LAYERS.split("|")) for name in names.split()}
FORBIDDEN = {("ctl", "mrcd.daemon.daemon")}  # mrcctl works without the daemon's code
MOST_PACKAGES, MOST_FILE_LINES, MOST_CLASS_LINES, MOST_ATTRIBUTES = 14, 400, 300, 15


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


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Returns the names that methods set on `self`, and the annotated fields of a class."""
    fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    stored = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return fields | {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}


def has_reason(node: ast.Module | ast.ClassDef, beginning: str) -> bool:
    """Returns whether a sentence of the docstring begins with these words."""
    return re.search(rf"(^|\.\s+|\n\n){beginning} ", ast.get_docstring(node) or "") is not None


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


def test_there_are_few_packages_and_each_has_a_level() -> None:
    assert sum((path / "__init__.py").exists() for path in MRCD.iterdir()) <= MOST_PACKAGES
    assert {package_of(module) for module in IMPORTS} <= LEVELS.keys()


def test_files_and_classes_are_small_or_state_a_reason() -> None:
    faults = []
    for module, tree in TREES.items():
        name, lines = FILES[module].relative_to(MRCD.parent), len(FILES[module].read_text().splitlines())
        if lines > MOST_FILE_LINES and not has_reason(tree, "Long because"):
            faults.append(f"{name} has {lines} lines")
        for node in (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
            lines, count = (node.end_lineno or 0) - node.lineno + 1, len(attributes_of(node))
            if lines > MOST_CLASS_LINES and not has_reason(node, "Long because"):
                faults.append(f"{name}: class {node.name} has {lines} lines")
            if count > MOST_ATTRIBUTES and not has_reason(node, "Many attributes because"):
                faults.append(f"{name}: class {node.name} has {count} attributes")
    assert not faults, "\n".join(faults)
