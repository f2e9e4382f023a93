# SPDX-License-Identifier: BSD-2-Clause
"""Makes findings of what single hosts say, and of where they differ: one per cause, with all its hosts. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from mrcd.config.hostlist import compress
from mrcd.fleet_check.findings import Finding, HostSample, Level, Limits, Samples, brief, each_of

_Hosts = Mapping[str, HostSample]


def findings(samples: Samples, wanted: Sequence[str], limits: Limits) -> Iterator[Finding]:
    """Yields what is wrong with hosts, the worst first."""
    yield from _of_hosts(
        Level.NOT_READY, "not_scraped", [name for name in wanted if not samples.knows(name)], "not known to Prometheus",
        "Prometheus has no samples of {}",
        "is the name right, and a target of the scrape job? See `mrcctl config show`, docs/metrics.md",
    )  # fmt: skip
    yield from _of_hosts(
        Level.NOT_READY, "mrcd_down", [name for name in wanted if name in samples.down], "down",
        "mrcd on {} does not answer Prometheus",
        "on {}: is the host up? `systemctl status mrcd`, `journalctl -u mrcd`",
    )  # fmt: skip
    yield from _of_hosts(
        Level.DEGRADED, "scrape_failed", [name for name in wanted if name in samples.missed],
        "not reached by the last scrape",
        f"the last scrape of {{}} failed; an earlier one is at most {limits.sample_s:g} s old, but Prometheus does "
        "not show its samples", "check again after the next scrape; Prometheus' page /targets has the error",
    )  # fmt: skip
    old = {name: s.age_s for name, s in samples.hosts.items() if s.age_s > limits.sample_s}
    yield from _of_hosts(
        Level.NOT_READY, "old_samples", old, "not scraped lately",
        f"the newest samples of {{}} are up to {max(old.values(), default=0):.0f} s old, more than "
        f"{limits.sample_s:g} s",
        "Prometheus' page /targets has the error; --max-age is for longer scrape intervals",
    )  # fmt: skip
    fresh = {name: s for name, s in samples.hosts.items() if name not in old}
    yield from _of_hosts(
        Level.NOT_READY, "detached", [name for name, s in fresh.items() if not s.attached], "detached",
        "{} detached: the kernel's own routes carry the traffic, and no path is watched",
        "on {}: `mrcctl attach`", verb=True,
    )  # fmt: skip
    yield from _differences(fresh)
    yield from _sweeps(fresh, limits)
    few = {name: s.in_use for name, s in fresh.items() if s.in_use is not None and s.in_use < limits.least_in_use}
    yield from _of_hosts(
        Level.NOT_READY, "few_evs", few, "with too few EVs in use",
        f"to most peers, {100 * min(few.values(), default=0):.0f} % of the EVs of {{}} are in use"
        f"{', or more' if len(few) > 1 else ''}; {100 * limits.least_in_use:.0f} % are wanted",
        "on {}: `mrcctl status`, `mrcctl paths --bad`",
    )  # fmt: skip


def planes_down(samples: Samples, told: set[str]) -> Iterator[Finding]:
    """Yields the planes whose link is down, by plane. `told`: targets that other findings name."""
    by_plane: defaultdict[int, list[str]] = defaultdict(list)
    for name, sample in samples.hosts.items():
        for plane in sample.planes_down:
            if not {f"nic:{name}:{plane}", f"t0:{plane}:{sample.t0}"} & told:
                by_plane[plane].append(name)
    for plane, names in sorted(by_plane.items()):
        yield from _of_hosts(
            Level.DEGRADED, "plane_down", names, f"without plane {plane}",
            f"plane {plane} of {{}} is down: its NIC has no carrier, or its first hop does not answer",
            "on {}: `mrcctl status`; check NIC, cable and the T0's port",
        )  # fmt: skip


def _differences(hosts: _Hosts) -> Iterator[Finding]:
    """Yields where hosts differ; those that are fewer are to blame."""
    show = "on {} and another host: `mrcctl config show`, then `mrcctl reload` with the right file"
    apart = _fewer(hosts, lambda s: s.agreed)
    yield from _of_hosts(
        Level.NOT_READY, "config_differs", apart, "with another [cluster]",
        "{} and the others have different cluster files: [cluster] differs in what packets depend on", show,
    )  # fmt: skip
    other = [n for n in _fewer(hosts, lambda s: s.sha256 and f"{s.generation} {s.sha256}") if n not in apart]
    is_of_etcd = {s.generation for s in hosts.values()} != {""}
    yield from _of_hosts(
        Level.DEGRADED, "file_differs", other, "with another cluster file",
        f"{{}} and the others run different {'generations of the cluster file' if is_of_etcd else 'cluster files'}",
        "`mrcctl fleet status`" if is_of_etcd else show,
    )  # fmt: skip
    yield from _authentication(hosts)
    versions = _fewer(hosts, lambda s: s.version)
    found, usual = (
        ", ".join(sorted({hosts[name].version for name in versions})),
        _most(s.version for s in hosts.values()),
    )
    yield from _of_hosts(
        Level.DEGRADED, "version_differs", versions, "with another version",
        f"mrcd {found} on {{}}, {usual} on the others", "`mrcctl fleet status`; upgrade {}",
    )  # fmt: skip


def _authentication(hosts: _Hosts) -> Iterator[Finding]:
    modes = {s.auth_mode for s in hosts.values()} - {""}
    refuses = {"off", "required"} <= modes
    yield from _of_hosts(
        Level.NOT_READY if refuses else Level.DEGRADED, "auth_mode", _fewer(hosts, lambda s: s.auth_mode),
        "with another [auth] mode",
        f"{{}} and the others have different [auth] modes: {', '.join(sorted(modes))}"
        + ("; required refuses the packets of off" if refuses else ""),
        "`mrcctl config show` on {} and another host",
    )  # fmt: skip
    tagging = {name: s for name, s in hosts.items() if s.key_ids}
    apart = _fewer(tagging, lambda s: ",".join(s.key_ids))
    usual = set(_most(",".join(s.key_ids) for s in tagging.values()).split(","))
    without = [name for name in apart if not usual & set(tagging[name].key_ids)]
    yield from _of_hosts(
        Level.NOT_READY, "wrong_key", without, "without a common secret",
        "{} and the others have no secret in common: they refuse each other's packets", "on {}: `mrcctl keys status`",
    )  # fmt: skip
    yield from _of_hosts(
        Level.DEGRADED, "keys_differ", [name for name in apart if name not in without], "with other secrets",
        "{} and the others have different secrets, and some in common: a rotation is not over",
        "on {}: `mrcctl keys rotate` with the new secrets file",
    )  # fmt: skip


def _sweeps(hosts: _Hosts, limits: Limits) -> Iterator[Finding]:
    """Yields the hosts whose last full sweep is too old, or not known."""
    ages = {name: s.sweep_age_s for name, s in hosts.items() if s.sweep_age_s is not None}
    old = [name for name, age in ages.items() if age > limits.sweep_s(hosts[name].full_sweep_s)]
    if old:
        worst = max(old, key=lambda name: ages[name])
        age, takes = ages[worst], hosts[worst].full_sweep_s
        said = "no full sweep of {} is over since its mrcd began, or the last one is too old"
        if math.isfinite(age):
            up_to = "up to " if len(old) > 1 else ""
            said = f"the last full sweep of {{}} is {up_to}{age:.0f} s old; one takes {takes:.0f} s"
        yield from _of_hosts(
            Level.NOT_READY, "old_sweep", old, "with an old full sweep", said,
            f"wait {limits.sweep_s(takes):.0f} s; then on {{}}: `mrcctl status`, `mrcctl doctor`",
        )  # fmt: skip
    yield from _of_hosts(
        Level.NOT_READY, "no_sweep", [name for name in hosts if name not in ages],
        "without mrc_full_sweep_age_seconds",
        "mrcd on {} does not say when it has probed all EVs: it is an older version",
        "upgrade mrcd there; does Prometheus drop metrics?",
    )  # fmt: skip


def _most(values: Iterator[str]) -> str:
    """Returns the value that most have; the greatest of several."""
    counts = Counter(value for value in values if value)
    return max(counts, key=lambda value: (counts[value], value), default="")


def _fewer(hosts: _Hosts, value: Callable[[HostSample], str]) -> list[str]:
    """Returns the hosts that have another value than most. Hosts without a value differ from none."""
    usual = _most(value(s) for s in hosts.values())
    return [name for name, s in hosts.items() if value(s) not in ("", usual)]


def _of_hosts(
    level: Level, cause: str, hosts: Sequence[str] | Mapping[str, object], state: str, sentence: str, do: str,
    *, verb: bool = False,
) -> Iterator[Finding]:  # fmt: skip
    """Yields a finding about hosts, if there are any. Their names replace {} in the texts."""
    if hosts:
        names = list(hosts)
        subject = compress(names) + f" {'is' if len(names) == 1 else 'are'}" * verb
        yield Finding(
            level, cause, f"{brief(names)} {state}", sentence.format(subject), do.format(each_of(names)), names
        )  # fmt: skip
