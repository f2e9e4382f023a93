# SPDX-License-Identifier: BSD-2-Clause
"""Attaches the programs to this host's interfaces, in an order that loses no packet."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mrcd.errors import MrcdError
from mrcd.fabric.topology import Plan
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.pinned import Tables, is_detached
from mrcd.net import hooks, offloads
from mrcd.net.nics import Nics


class AttachedPrograms:
    """The programs that are attached to this host's interfaces."""

    def __init__(self, run_dir: Path) -> None:
        self.hooks: list[dict[str, Any]] = []
        """A document per NIC, and one of mrc_push."""
        self._checksums = offloads.ReceiveChecksums(run_dir / offloads.FILE)
        self._interfaces: set[int] | None = None  # ifindexes when the last attach was complete

    def are_complete(self, nics: Nics) -> bool:
        """Whether the programs are attached to all present interfaces that need them, and to no unsafe one."""
        return nics.interfaces() == self._interfaces and not hooks.is_unsafe(nics.ports, self.hooks)

    def expire(self) -> None:
        """Have `are_complete` return False: programs of another plan may be attached, or only some of this one's."""
        self._interfaces = None

    def attach(self, plan: Plan, dataplane: Dataplane, nics: Nics, tables: Iterable[Tables]) -> None:
        """Attach mrc_pop before mrc_push: this host can receive before it sends requests.

        `tables`: the plan's, and those of the programs that are attached now. A detached host has no
        mrc_push; its mrc_pop stays for peers that have not noticed yet, unless it was removed by force. Piggybacked
        requests need mrc_probe while mrc_push is attached. Raises the first error of a NIC when all others are done.
        """
        tables = tuple(tables)
        node = tables[0].node
        self.hooks.clear()
        for one in tables:  # no clones until the programs that receive them are attached
            one.node["probe_ifindex"] = one.node["timer_ifindex"] = 0
        self._interfaces = None  # until the last step has succeeded
        if is_detached(node) and not dataplane.attached():
            self._checksums.restore()
            self._interfaces = nics.interfaces()
            return
        keep, failed = set[str](), dict[str, MrcdError]()
        wanted = plan.config.hook(plan.host)
        with dataplane.replacing_programs(node):
            for port in nics.ports.values():
                first = min(p for p, other in nics.ports.items() if other.physical.ifindex == port.physical.ifindex)
                try:
                    used, document = hooks.attach_pop(dataplane, wanted, port, first, self._checksums)
                except MrcdError as e:
                    failed[port.physical.name] = e.with_traceback(None)  # which would keep what this frame refers to
                    keep |= hooks.pop_names(first)
                    continue
                keep |= used
                self.hooks.append(document)
            if not is_detached(node):
                keep |= self._attach_push(plan, dataplane, nics, tables[0])
            dataplane.detach_others(keep, nics.tc_hooks())
        self._checksums.restore(hooks.with_xdp(nics.ports, self.hooks).keys() | failed.keys())
        if failed:
            raise failed.pop(min(failed))
        self._interfaces = nics.interfaces()

    def _attach_push(self, plan: Plan, dataplane: Dataplane, nics: Nics, tables: Tables) -> set[str]:
        """Attach the programs that send. Returns the names of the links."""
        probe, unsent = hooks.probe_attachment(nics.mrc0_peer), hooks.unsent_attachment()
        others = [unsent] if unsent.program in dataplane.programs() else []
        dataplane.attach(probe)
        tables.node["probe_ifindex"] = nics.mrc0_peer.ifindex
        if nics.timer:
            end, peer = nics.timer
            timer = hooks.timer_attachment(end)
            dataplane.attach(timer)
            tables.node["timer_ifindex"] = peer.ifindex
            others.append(timer)
        if unsent in others:
            dataplane.attach(unsent)
        pushes, document = hooks.push_attachments(plan.config.cluster.granularity, nics.mrc0, nics.mrc0_peer)
        how = [dataplane.attach(push) for push in pushes]
        self.hooks.append(document | {"how": how[0]})
        return {probe.name, *(a.name for a in (*pushes, *others))}

    def save_checksums(self) -> None:
        """Write the file that says where mrcd has switched rx-checksum off."""
        self._checksums.save()

    def remove(self, dataplane: Dataplane, nics: Nics) -> None:
        """Detach all programs, including mrc_pop."""
        dataplane.detach_others(set(), nics.tc_hooks())
        self._checksums.restore()
        self.hooks.clear()
