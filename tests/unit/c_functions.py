# SPDX-License-Identifier: BSD-2-Clause
"""Builds functions of the headers in bpf/ by the host compiler, so that tests may call them."""

import ctypes
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

BPF = Path(__file__).parents[2] / "bpf"
TYPES = {
    "int": ctypes.c_int, "u8": ctypes.c_uint8, "u16": ctypes.c_uint16, "u32": ctypes.c_uint32,
    "s32": ctypes.c_int32, "u64": ctypes.c_uint64,
}  # fmt: skip


def build(directory: Path, source: str) -> ctypes.CDLL:
    """Returns the library of a C source that includes headers of bpf/."""
    (directory / "it.c").write_text(source)
    # A shift too far or an index out of bounds ends the process instead of giving some number.
    strict = ["-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    command = ["cc", "-O2", "-shared", "-fPIC", *strict, f"-I{BPF}", "it.c", "-o", "it.so"]
    subprocess.run(command, check=True, cwd=directory)
    return ctypes.CDLL(str(directory / "it.so"))


def compiled(directory: Path, headers: Iterable[str], functions: str, more: str = "") -> ctypes.CDLL:
    """Returns a library of inline functions: a line each of their type, name, and types of parameters."""
    source, lines = "".join(f'#include "{h}"\n' for h in headers) + more, []
    for line in functions.strip().splitlines():
        result, name, *parameters = re.split(r"[ (]", line.rstrip(")"))
        c = [re.sub(r"\b([us]\d+)", r"__\1", word.replace("const_", "const ")) for word in (result, *parameters)]
        listed = ", ".join(f"{kind} v{i}" for i, kind in enumerate(c[1:]))
        given = ", ".join(f"v{i}" for i in range(len(parameters)))
        source += f"{c[0]} of_tests_{name}({listed}) {{ return {name}({given}); }}\n"
        lines.append((result, name, parameters))
    library = build(directory, source)
    for result, name, parameters in lines:
        function = library[f"of_tests_{name}"]
        function.argtypes = [ctypes.c_void_p if "*" in kind else TYPES[kind] for kind in parameters]
        function.restype = TYPES[result]
        setattr(library, name, function)
    return library
