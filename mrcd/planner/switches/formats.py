# SPDX-License-Identifier: BSD-2-Clause
"""Lists the formats in which the configuration of a switch can be written."""

from collections.abc import Callable
from dataclasses import dataclass

from mrcd.config.cluster_file import Config, Encapsulation
from mrcd.errors import UsageError
from mrcd.planner.switches import cumulus, eos, frr, iproute2, sonic
from mrcd.planner.switches.model import Switch, Switches
from mrcd.planner.switches.reading import Reading

_LINUX_NAME = 15  # IFNAMSIZ without the final zero
_NO_PLAIN_END: tuple[Encapsulation, ...] = ("usid", "ecmp")


@dataclass(frozen=True)
class Format:
    """Writes the configuration of one kind of system, and reads it back."""

    name: str
    suffix: str  # of a file
    port_names: str  # template, if the cluster file has none
    text: Callable[[Switch], str]
    read: Callable[[str], Reading]
    encapsulations: tuple[Encapsulation, ...] = _NO_PLAIN_END
    longest_name: int = _LINUX_NAME  # of a port

    def switches(self, config: Config) -> Switches:
        """Returns the switches of a cluster file. Raises ConfigError, UsageError."""
        encapsulation = config.cluster.encapsulation
        if encapsulation not in self.encapsulations:
            raise UsageError(
                f"{self.name} has no static SIDs for encapsulation {encapsulation}",
                hint='`--format iproute2` has them; or set [cluster] encapsulation to "usid"',
            )
        return Switches(config, self.port_names, self.longest_name)


FORMATS = {
    f.name: f
    for f in (
        Format("sonic", "json", sonic.PORT_NAMES, sonic.text, sonic.read),
        Format("frr", "conf", frr.PORT_NAMES, frr.text, frr.read),
        Format("cumulus", "sh", cumulus.PORT_NAMES, cumulus.text, cumulus.read),
        Format("eos", "cfg", eos.PORT_NAMES, eos.text, eos.read, longest_name=64),
        Format("iproute2", "sh", iproute2.PORT_NAMES, iproute2.text, iproute2.read, ("usid", "srh", "ecmp")),
    )
}
