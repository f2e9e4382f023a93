# SPDX-License-Identifier: BSD-2-Clause
"""Lets a program import modules of a package without all that the package itself imports.

The daemon uses the server of aiohttp and the routes of pyroute2. Both packages import all their parts: clients, TLS
contexts, databases, sockets of other protocols. That took a third of the CPU time of the daemon's imports.
"""

import importlib.metadata
import importlib.util
import sys
import threading
from typing import Any


def import_in_part(name: str) -> None:
    """Makes `import name.module` import that module alone, from now on.

    The package itself is run when something uses a name of it that is none of its modules. Nothing changes if it is
    imported already.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package, run = importlib.util.module_from_spec(spec), spec.loader.exec_module
    lock, has_run = threading.RLock(), False

    def find(attribute: str) -> Any:
        nonlocal has_run
        if attribute == "__version__":
            return importlib.metadata.version(name)
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        if importlib.util.find_spec(f"{name}.{attribute}"):
            return importlib.import_module(f"{name}.{attribute}")
        with lock:  # others wait until the package is whole
            if not has_run:
                has_run = True
                try:
                    run(package)
                except BaseException:  # the next use tries again, and fails for the same reason
                    has_run, package.__getattr__ = False, find  # type: ignore[method-assign]
                    raise
        if attribute not in vars(package) and vars(package).get("__getattr__") is find:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return getattr(package, attribute)

    package.__getattr__ = find  # type: ignore[method-assign]
    sys.modules[name] = package
