# SPDX-License-Identifier: BSD-2-Clause
"""Reads from Prometheus what hosts last told it. The number of queries does not depend on that of the hosts."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mrcd.errors import MachineError
from mrcd.fleet_check.findings import HostSample, Named, Samples
from mrcd.prometheus import Prometheus, Sample, one_of

_SHOWN_HOSTS = 4  # hosts that are named of those that see a fault
_SCRAPED = "1d"  # a host that has not been scraped for so long never was
HOST_METRICS = (
    *("mrc_config_info", "mrc_auth_mode_info", "mrc_attached"),
    *("mrc_evs_in_use_ratio", "mrc_full_sweep_age_seconds", "mrc_full_sweep_seconds"),
)

Key = tuple[str, str]  # job, instance: what a host is to Prometheus


def read(server: Prometheus, wanted: Sequence[str], sample_s: float) -> Samples:
    """Returns what is known of the wanted hosts. Raises MachineError if Prometheus cannot tell.

    `sample_s`: the age of a sample that is too old.
    """
    selector = f"mrc_build_info{{{one_of('host', wanted)}}}"
    of_job = f"and on (job, instance) {selector}"
    builds = server.query(f"time() - timestamp({selector})")
    instances: dict[str, tuple[float, Key, str]] = {}  # the newest of each host
    for labels, age_s in sorted(builds, key=lambda sample: -sample[1]):
        instances[labels["host"]] = age_s, _key(labels), labels.get("version", "")
    missing = [host for host in wanted if host not in instances]
    failed = _failed(server, missing, sample_s) if missing else {}
    if not instances or min(age_s for age_s, _, _ in instances.values()) > sample_s:
        _require_scrapes(server, sample_s)
    scraped = f'{{__name__=~"{"|".join(HOST_METRICS)}"}} {of_job} or mrc_plane_up == 0 {of_job}'
    found = server.query(scraped) if instances else []
    by_key: defaultdict[Key, list[Sample]] = defaultdict(list)
    for sample in found:
        by_key[_key(sample[0])].append(sample)
    hosts = {host: _host(age_s, version, by_key[key]) for host, (age_s, key, version) in instances.items()}
    names = {key[1]: host for host, (_, key, _) in instances.items()}
    down = frozenset(host for host, was_reached in failed.items() if not was_reached)
    return Samples(hosts, down, failed.keys() - down, _named(server, of_job, names) if instances else ())


def _host(age_s: float, version: str, samples: Iterable[Sample]) -> HostSample:
    values: dict[str, float] = {}
    config: dict[str, str] = {}
    mode, planes = "", set()
    for labels, value in samples:
        name = labels["__name__"]
        values[name] = value
        if name == "mrc_config_info":
            config = labels
        elif name == "mrc_auth_mode_info":
            mode = labels["mode"]
        elif name == "mrc_plane_up":
            planes.add(int(labels["plane"]))
    t0, key_ids = config.get("t0", ""), config.get("key_ids", "")
    return HostSample(
        age_s,
        version,
        attached=values.get("mrc_attached", 1.0) == 1,
        planes_down=sorted(planes),
        auth_mode=mode,
        key_ids=key_ids.split(",") if key_ids else (),
        t0=int(t0) if t0 else None,
        agreed=config.get("agreed", ""),
        sha256=config.get("sha256", ""),
        generation=config.get("generation", ""),
        in_use=values.get("mrc_evs_in_use_ratio"),
        sweep_age_s=values.get("mrc_full_sweep_age_seconds"),
        full_sweep_s=values.get("mrc_full_sweep_seconds", 0.0),
    )


def _named(server: Prometheus, of_job: str, names: dict[str, str]) -> list[Named]:
    """Returns what hosts name, summed over hosts by Prometheus. `names`: of the hosts, by instance."""
    # One per host, even if two servers or two scrape jobs have it.
    faults = f"max by (cause, target, instance) (mrc_fault {of_job})"
    shares: defaultdict[tuple[str, str], dict[float, int]] = defaultdict(dict)
    counted = server.query(f'count_values by (cause, target) ("share", {faults})')
    for labels, count in counted:
        shares[labels["cause"], labels["target"]][float(labels["share"])] = int(count)
    if not shares:
        return []
    some: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for labels, _ in server.query(f"topk by (cause, target) ({_SHOWN_HOSTS}, {faults})"):
        host = names.get(labels.get("instance", ""))
        if host is not None:
            some[labels["cause"], labels["target"]].append(host)
    return [Named(*key, by_share, tuple(some[key])) for key, by_share in shares.items()]


def _failed(server: Prometheus, missing: Sequence[str], sample_s: float) -> dict[str, bool]:
    """Returns those of these hosts that Prometheus does not reach now, and whether it reached them lately."""
    known = f"max by (job, instance, host) (last_over_time(mrc_build_info{{{one_of('host', missing)}}}[{_SCRAPED}]))"
    lately = f"max by (job, instance) (max_over_time(up[{round(sample_s * 1000)}ms]))"
    failed = f"({lately} and on (job, instance) (up == 0))"
    found: dict[str, bool] = {}
    for labels, was_reached in server.query(f"{known} * on (job, instance) group_left () {failed}"):
        found[labels["host"]] = found.get(labels["host"], False) or was_reached > 0
    return found


def _require_scrapes(server: Prometheus, sample_s: float) -> None:
    """Raises MachineError if Prometheus has no fresh sample of any host of the cluster."""
    fresh = f"timestamp(mrc_build_info) >= time() - {sample_s:g}"
    if not server.query(f"count({fresh})"):
        raise MachineError(
            f"Prometheus at {server.url} has no sample of any host that is newer than {sample_s:g} s",
            hint="is the URL that of the right server? Its page /targets has errors; see docs/metrics.md",
        )


def _key(labels: dict[str, str]) -> Key:
    return labels.get("job", ""), labels.get("instance", "")
