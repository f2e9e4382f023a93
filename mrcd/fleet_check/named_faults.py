# SPDX-License-Identifier: BSD-2-Clause
"""Makes findings of what hosts name in mrc_fault: one per target, if it concerns the job. Pure.

A target concerns the job if paths between two of its hosts cross it. Of targets that would explain the same, the one
is named of which a host is sure, or that explains most over all hosts.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from mrcd.config.hostlist import compress
from mrcd.fleet_check.findings import Finding, Level, Named, Samples, brief, each_of
from mrcd.health.diagnosis.causes import Kind

_KINDS = {kind.value: kind for kind in Kind}
_OTHERS = "others"  # the cause and the target of series that mrcd has summed

# Cause → words for the state of its target; "is dead" for all others.
_WORDS = {
    Kind.LOSS: "loses packets",
    Kind.SMALL_MTU: "has too small an MTU",
    Kind.SLOW_PLANE: "delays packets",
    Kind.CONGESTION: "delays packets",
    Kind.UNKNOWN: "has failed EVs, and no element explains them",
    Kind.WRONG_CABLE: "has the cable of another NIC or port",
    Kind.DENIED: "is denied by an administrator",
    Kind.PEER_DOWN: "does not answer",
    Kind.HOST: "does not answer",
    Kind.PEER_DETACHED: "is detached",
    Kind.DETACHED: "is detached",
    Kind.WRONG_KEY: "has other secrets than others: they refuse each other's packets",
    Kind.UNDELIVERED: "drops packets that have arrived",
    Kind.OTHER_ROUTE: "sends traffic past mrcd, by another program's route or rule",
    Kind.CONFIG_DIFFERS: "has another cluster file or version than others: they refuse each other's packets",
}
_OF_HOST = {
    Kind.PEER_DOWN: "on {}: `systemctl status mrcd`, `mrcctl doctor`",
    Kind.HOST: "on {}: `systemctl status mrcd`, `mrcctl doctor`",
    Kind.PEER_DETACHED: "on {}: `mrcctl attach`",
    Kind.DETACHED: "on {}: `mrcctl attach`",
    Kind.WRONG_KEY: "on {} and another host: `mrcctl keys status`",
    Kind.UNDELIVERED: "on {}: `mrcctl status` says why",
    Kind.OTHER_ROUTE: "on {}: `mrcctl status` names the route",
    Kind.CONFIG_DIFFERS: "on {} and another host: `mrcctl config show`, `mrcctl version`",
    Kind.DENIED: "`mrcctl denials` and `mrcctl fleet status` say by whom and until when",
}
_IMPAIRED = (Kind.LOSS, Kind.SMALL_MTU, Kind.SLOW_PLANE, Kind.CONGESTION, Kind.UNDELIVERED, Kind.UNKNOWN)
_OF_NIC = (Kind.OWN_NIC, Kind.OWN_CABLE, Kind.PEER_NIC, Kind.WRONG_CABLE)
_IS_TOLD_BY_HOST = (Kind.OWN_NIC, Kind.OWN_CABLE, Kind.WRONG_CABLE)  # in these words rather than in others


@dataclass
class _Target:
    """A target, and the hosts that name it. `weight` is the sum of the shares."""

    target: str
    causes: dict[Kind, int]
    weight: float = 0.0
    is_sure: bool = False
    hosts: tuple[str, ...] = ()

    @property
    def parts(self) -> list[str]:
        """Returns the word of the target, and its numbers or names."""
        return self.target.split(" ")[0].split(":")

    @property
    def is_host(self) -> bool:
        """Returns whether it is a host as a whole."""
        return self.parts[0] == "peer" and " " not in self.target

    @property
    def confirm(self) -> str:
        """Returns what to do to confirm it."""
        return f"on {self.hosts[0] if self.hosts else 'a host that sees it'}: `mrcctl status` says how to confirm it"

    @property
    def seen_by(self) -> int:
        """Returns the number of hosts that name it."""
        return sum(self.causes.values())

    @property
    def kind(self) -> Kind:
        """Returns the cause that tells most."""
        told = [kind for kind in _IS_TOLD_BY_HOST if kind in self.causes]
        return told[0] if told else max(self.causes, key=lambda kind: self.causes[kind])

    @property
    def plane(self) -> str:
        """Returns the plane of an element; "" of a host."""
        word, *rest = self.parts
        return rest[-1] if word == "nic" else rest[0] if word in ("t0", "t1", "link", "plane") else ""


def findings(samples: Samples, wanted: Sequence[str], known: Mapping[Kind, AbstractSet[str]]) -> list[Finding]:
    """Returns what the hosts together name, as far as it concerns the job.

    `known`: hosts of which another finding says the same, by cause.
    """
    t0_of = {name: sample.t0 for name, sample in samples.hosts.items()}
    job = _Job(frozenset(wanted), t0_of)
    targets: dict[str, _Target] = {}
    left_out = 0
    for named in samples.named:
        if named.cause == _OTHERS:
            left_out += sum(named.shares.values())
        elif job.has(named.target):
            _add(targets, named)
    found, hosts = [], defaultdict[Kind, list[_Target]](list)
    for group in _told_apart(targets, t0_of):
        if not all(entry.is_host for entry in group):
            found.append(_element(group, len(samples.hosts)))
        elif any(entry.parts[1] in known.get(entry.kind, ()) for entry in group):
            continue
        elif len(group) > 1:
            found.append(_hosts(group, len(samples.hosts), is_one=True))
        else:
            hosts[group[0].kind].append(group[0])
    found += [_hosts(group, len(samples.hosts)) for group in hosts.values()]
    if left_out:
        text = f"{left_out} hosts have more causes than mrc_fault can name"
        found.append(Finding(Level.DEGRADED, _OTHERS, "more causes", text, "`mrcctl status` on them", seen_by=left_out))
    return found


@dataclass(frozen=True)
class _Job:
    hosts: frozenset[str]
    t0_of: Mapping[str, int | None]

    def has(self, target: str) -> bool:
        """Returns whether paths between hosts of the job cross a target."""
        word, *rest = target.split(" ")[0].split(":")
        if word in ("peer", "host", "nic", "ev"):
            return rest[0] in self.hosts
        t0s = set(self.t0_of.values())
        is_under_one = len(t0s) == 1 and None not in t0s
        if word == "t1":
            return not is_under_one
        if word in ("t0", "link"):
            return None in t0s or (int(rest[1]) in t0s and not (word == "link" and is_under_one))
        return True


def _add(targets: dict[str, _Target], named: Named) -> None:
    """Adds what hosts say of a target. A host calls itself host:NAME, and others call it peer:NAME."""
    name = named.target.replace("host:", "peer:", 1) if named.target.startswith("host:") else named.target
    entry = targets.setdefault(name, _Target(name, {}))
    kind = _KINDS.get(named.cause, Kind.UNKNOWN)  # an unknown one is of a newer mrcd
    entry.causes[kind] = entry.causes.get(kind, 0) + sum(named.shares.values())
    entry.weight += sum(share * count for share, count in named.shares.items())
    entry.is_sure |= any(share >= 1 for share in named.shares)
    entry.hosts = tuple(dict.fromkeys((*entry.hosts, *named.hosts)))


def _told_apart(targets: dict[str, _Target], t0_of: Mapping[str, int | None]) -> Iterator[list[_Target]]:
    """Yields the targets that are named, each alone, or with others from which no host can tell it."""
    links: defaultdict[str, list[_Target]] = defaultdict(list)
    for entry in targets.values():
        if entry.parts[0] == "link":
            _, plane, _, t1 = entry.parts
            links[f"t1:{plane}:{t1}"].append(entry)
    sure = {name: entry for name, entry in targets.items() if entry.is_sure}
    open_ = {name: entry for name, entry in targets.items() if not entry.is_sure}
    for name, entry in list(open_.items()):  # hosts under one T0 cannot tell a T1 from its link to that T0
        if entry.parts[0] != "t1":
            continue
        del open_[name]
        if entry.weight >= max((link.weight for link in links[name]), default=0.0):
            sure[name] = entry
    yield from ([entry] for entry in sure.values())
    by_plane: defaultdict[str, list[_Target]] = defaultdict(list)
    for entry in open_.values():
        if not any(_explains(other, entry, t0_of) for other in sure.values()):
            by_plane[entry.plane].append(entry)
    yield from by_plane.values()


def _explains(sure: _Target, other: _Target, t0_of: Mapping[str, int | None]) -> bool:
    """Returns whether a target that is sure explains what the other would: they share paths that end there."""
    if sure.is_host and other.is_host:
        return sure.kind is other.kind
    if not sure.plane or sure.plane != other.plane:
        return False
    pair = {word: rest for word, *rest in (sure.parts, other.parts)}
    if pair.keys() == {"t1", "link"}:
        return pair["t1"][1] == pair["link"][2]
    if pair.keys() == {"t0", "link"}:
        return pair["t0"][1] == pair["link"][1]
    return pair.keys() == {"nic", "t0"} and t0_of.get(pair["nic"][0]) in (int(pair["t0"][1]), None)


def _hosts(group: Sequence[_Target], of_hosts: int, *, is_one: bool = False) -> Finding:
    """Returns a finding of hosts as wholes that have the same cause; with `is_one`, of one of them."""
    kind, names, first = group[0].kind, [entry.parts[1] for entry in group], group[0]
    written, words = compress(names), _WORDS.get(kind, "is dead")
    if is_one:
        written = f"one of {written}"
    elif len(names) > 1:
        words = words.replace("is ", "are ", 1).replace("does ", "do ", 1).replace("has ", "have ", 1)
    seen_by = min(of_hosts, max(entry.seen_by for entry in group))
    up_to = "up to " if len({entry.seen_by for entry in group}) > 1 else ""
    return Finding(
        Level.DEGRADED if kind in _IMPAIRED else Level.NOT_READY,
        kind.value,
        f"{'one of ' * is_one}{brief(names)} {words.split(':')[0]}",
        f"{written} {words}: {up_to}{seen_by} of {of_hosts} hosts see it",
        _OF_HOST.get(kind, first.confirm).format(each_of(names)),
        names,
        first.target if len(names) == 1 else "",
        seen_by,
    )


def _element(group: Sequence[_Target], of_hosts: int) -> Finding:
    """Returns a finding of a target that is no host, or of several targets of which one is to be repaired."""
    by_weight = sorted(group, key=lambda entry: -entry.weight)
    first, names = by_weight[0], " or ".join(entry.target for entry in by_weight)
    kind, word, owner = first.kind, first.parts[0], first.parts[1]
    words, seen_by = _WORDS.get(kind, "is dead"), min(of_hosts, max(entry.seen_by for entry in group))
    lacks = f"plane {first.plane} lacks {names}" if words == "is dead" and first.plane else f"{names} {words}"
    do = first.confirm
    if kind is Kind.DENIED:
        do = _OF_HOST[kind]
    elif word == "nic" and kind in _OF_NIC:
        do = f"on {owner}: `mrcctl status`; check NIC, cable and the T0's port"
    return Finding(
        Level.NOTE if kind is Kind.DENIED else Level.DEGRADED,
        kind.value,
        lacks,
        f"{names} {words}: {seen_by} of {of_hosts} hosts see it",
        do,
        (owner,) if word in ("nic", "peer") else (),
        names,
        seen_by,
    )
