"""Checks the structure of mrcd/: packages import downwards only, without circles, and stay small."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

MRCD = Path(__file__).parents[2] / "mrcd"
LAYERS = (
    *({"errors", "versions"}, {"config"}, {"bpf"}, {"tables"}, {"fabric"}, {"loader"}, {"net"}, {"health"}, {"view"}),
    *({"denials"}, {"daemon"}, {"metrics"}, {"api"}, {"main"}, {"ctl"}),
)  # lowest first
LEVELS = {name: level for level, names in enumerate(LAYERS) for name in names}
FORBIDDEN = {("ctl", "mrcd.daemon.daemon")}  # mrcctl must not load bcc, numpy's tables and the event loop
MOST_PACKAGES, MOST_FILE_LINES, MOST_CLASS_LINES, MOST_ATTRIBUTES = 14, 400, 300, 15


def module_name(path: Path) -> str:
    parts = path.relative_to(MRCD.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(p): (p, ast.parse(p.read_text(encoding="utf-8"))) for p in sorted(MRCD.rglob("*.py"))}


def imports(tree: ast.AST) -> Iterator[str]:
    """Yields the modules of mrcd that a module imports, at its top or inside functions."""
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"relative import in line {node.lineno}"
            names = [m if (m := f"{node.module}.{a.name}") in TREES else str(node.module) for a in node.names]
        yield from (n for n in names if n.partition(".")[0] == "mrcd" and n != "mrcd")


def room(module: str) -> str:
    return module.split(".")[1]


def states_a_reason(node: ast.Module | ast.ClassDef, beginning: str) -> bool:
    text = inspect.cleandoc(ast.get_docstring(node) or "").replace("\n", " ")
    return f" {beginning}" in f" {text}"


def attributes(node: ast.ClassDef) -> set[str]:
    """Returns the names that methods set on `self`, and the annotated fields of the class."""
    fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    stores = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return fields | {n.attr for n in stores if isinstance(n.value, ast.Name) and n.value.id == "self"}
