# SPDX-License-Identifier: BSD-2-Clause
"""Switches one part of mrcd off at a time, in all hosts of a lab, to measure what it costs a training job.

What the configuration decides is changed by a reload; for the rest, fields of the programs' node are set to 0, which
is how the daemon says that a host does not have the interface.
"""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labkit.cluster import attachment, netns, observe
from labkit.cluster.api import Lab
from labkit.cluster.attachment import ATTACHED, DETACHED
from labkit.cluster.observe import Document
from labkit.measure import progstats
from labkit.traffic import candidates
from labkit.traffic.candidates import KERNEL, MRCD
from mrcd.config import toml_text
from mrcd.kernel.pinned import Tables

_PROGRAMS = {"push", "pop", "xdp", "probe", "timer"}
Sections = Mapping[str, Mapping[str, int | str]]  # of a cluster file: values by section and name


@dataclass(frozen=True)
class Way:
    """A way to run: `steps` are made in the cluster file, `zero` are fields of struct mrc_node that are 0."""

    attached: bool = True
    steps: tuple[Sections, ...] = ()
    zero: tuple[str, ...] = ()
    spreads: bool = True  # flows over all CPUs, behind mrc0, or behind the NICs where mrcd is detached


WAYS = {
    ATTACHED: Way(),
    DETACHED: Way(attached=False),
    "detached, packets stay on their CPU": Way(attached=False, spreads=False),
    "no clones: no requests on packets, copies, timer packet": Way(zero=("probe_ifindex", "timer_ifindex")),
    "no timer packet": Way(zero=("timer_ifindex",)),
    "a request in 5 ms at most": Way(
        steps=({"health": {"probe_gap_us": 5000, "probe_late_ms": 20, "loss_window_ms": 2000, "overdue_ms": 1000}},)
    ),
    "no copies": Way(steps=({"overlay": {"dup_ack_us": 0, "copies_per_s": 0}},)),
    "no tags": Way(steps=({"auth": {"mode": "permissive"}}, {"auth": {"mode": "off"}})),
    "popped packets stay on their CPU": Way(spreads=False),
    "popped packets stay at the NIC": Way(zero=("overlay_ifindex",)),
    "no merging by mrc0": Way(zero=("merge_ifindex",)),
}


@contextlib.contextmanager
def running(lab: Lab, way: Way) -> Iterator[None]:
    """A block in which all hosts run this way. The hosts are attached before and after it."""
    if not way.attached:
        attachment.switch(lab, DETACHED)
        try:
            yield
        finally:
            attachment.switch(lab, ATTACHED)
        return
    with contextlib.ExitStack() as undo:
        for sections in way.steps:
            undo.enter_context(_configured(lab, sections))
        for host in lab.fabric.hosts if way.zero else ():
            tables = undo.enter_context(contextlib.closing(Tables(observe.pins(lab, host), writable=True)))
            for name in way.zero:
                undo.callback(tables.node.__setitem__, name, int(tables.node[name]))
                tables.node[name] = 0
        yield


@contextlib.contextmanager
def receiving(lab: Lab, way: Way) -> Iterator[None]:
    """A block in which all hosts receive as this way says (candidates.receiving)."""
    with contextlib.ExitStack() as undo:
        undo.enter_context(candidates.receiving(lab, MRCD if way.attached else KERNEL, lab.fabric.hosts))
        for host in () if way.spreads else lab.fabric.hosts:
            config = lab.fabric.config
            nics = config.interface_names(config.host(host))
            with lab.inside(host):
                before = netns.swap_rps(dict.fromkeys([config.overlay.interface] if way.attached else nics, "0"))
            undo.callback(_put_back, lab, host, before)
        yield


def _put_back(lab: Lab, host: str, masks: dict[str, str]) -> None:
    with lab.inside(host):
        netns.swap_rps(masks)


@contextlib.contextmanager
def _configured(lab: Lab, sections: Sections) -> Iterator[None]:
    before = lab.state.cluster_file.read_text(encoding="utf-8")
    document = tomllib.loads(before)
    for section, values in sections.items():
        document.setdefault(section, {}).update(values)
    try:
        _reload(lab, "\n".join(toml_text.lines(document, defaults=False)) + "\n")
        yield
    finally:
        _reload(lab, before)


def _reload(lab: Lab, text: str) -> None:
    lab.state.cluster_file.write_text(text, encoding="utf-8")
    for host in lab.fabric.hosts:
        observe.reload(lab, host)
    observe.wait_until_good(lab, lab.fabric.hosts)


class Counts:
    """Sums over all hosts of a lab: packets that mrcd has sent, by kind, and the CPU time of its programs in ns."""

    def __init__(self, lab: Lab) -> None:
        self._sums: dict[str, float] = {"data": 0, "copies": 0, "reports": 0}
        for host in lab.fabric.hosts:
            with contextlib.closing(Tables(observe.pins(lab, host), writable=False)) as tables:
                self._add("data", int(tables.evs["tx_packets"].sum()))
                self._add("copies", int(tables.copies["sent"].sum()))
                for kind, number in tables.probes_sent().items():
                    self._add(f"requests_{kind}", number)
                    self._add("reports", number if kind != "link" else 0)
            pins = {pin.name.split("-")[0]: pin for pin in (observe.pins(lab, host) / "links").iterdir()}
            for name in _PROGRAMS & pins.keys():  # all links of a name have the same program
                with progstats.linked(pins[name]) as program:
                    self._add(f"{name}_ns", progstats.runs(program).ns)

    def _add(self, name: str, number: float) -> None:
        self._sums[name] = self._sums.get(name, 0) + number

    def since(self, before: "Counts", steps: int) -> Document:
        """Returns the differences per step."""
        return {f"{k}_per_step": (v - before._sums.get(k, 0)) / steps for k, v in self._sums.items()}  # noqa: SLF001
