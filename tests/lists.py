# SPDX-License-Identifier: BSD-2-Clause
"""Compares two lists of the same names, and says which file to edit if they differ."""

from collections import Counter
from collections.abc import Iterable


def compare(
    listed: Iterable[str], known: Iterable[str], *, in_file: str, known_from: str, ordered: bool = False
) -> None:
    """Asserts that `in_file` lists exactly the names that `known_from` has; in the same order if `ordered`."""
    there, wanted = list(listed), list(known)
    missing = [name for name in wanted if name not in there]
    unknown = [name for name in there if name not in wanted]
    twice = [name for name, count in Counter(there).items() if count > 1]
    faults = [f"{in_file}: add {', '.join(missing)}"] if missing else []
    faults += [f"{in_file}: {', '.join(twice)} is there twice"] if twice else []
    faults += [f"{in_file}: remove {', '.join(unknown)}, or add to {known_from}"] if unknown else []
    if not faults and ordered and there != wanted:
        first = next(right for left, right in zip(there, wanted, strict=False) if left != right)
        faults.append(f"{in_file}: put {first} in the order of {known_from}")
    assert not faults, "\n".join(faults)
