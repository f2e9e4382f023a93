# SPDX-License-Identifier: BSD-2-Clause
"""Compares the alerts that a fault has fired with those that it must fire. Pure."""

from collections.abc import Collection, Mapping

from labkit.bench.alerts.cases import Alerts
from labkit.monitoring.alertmanager import Notice

_SUBJECTS = ("target", "peer", "host", "plane")  # labels whose values an alert's summary must name
_FORGOTTEN_LATE = "MrcImpaired"


def errors(expected: Alerts, fired: Mapping[str, Notice], after: Collection[str]) -> list[str]:
    """Returns what is missing or wrong in the alerts that fired during a fault, and in the new ones `after` it.

    After the end of a loss, the hosts forget it EV by EV within a minute. The rule waits for five minutes, which would
    cover that minute, but the bench has shortened them. So other targets of the same alert do not count then.
    """
    found = [f"{name} did not fire" for name in expected if name not in fired]
    found += [f"{name} fired" for name in fired if name not in expected]
    is_grey = any(name.startswith(_FORGOTTEN_LATE) for name in expected)
    found += [
        f"{name} fired after the end"
        for name in after
        if name not in expected and name not in fired and not (is_grey and name.startswith(_FORGOTTEN_LATE))
    ]
    for name, commands in expected.items():
        if name in fired:
            found += [f"{name}: {words}" for words in _unhelpful(commands, fired[name])]
    return found


def _unhelpful(commands: Collection[str], notice: Notice) -> list[str]:
    """Returns what an alert's text lacks."""
    found = [f"the text does not name `{c}`" for c in commands if f"`{c}`" not in notice.text]
    subjects = [notice.labels[label].removeprefix("peer:") for label in _SUBJECTS if label in notice.labels]
    found += [f"the summary does not name {s}" for s in subjects if s not in notice.summary]
    return found + ["the text has an empty value" for _ in range("no value" in notice.text or "%!" in notice.text)]
