# SPDX-License-Identifier: BSD-2-Clause
"""Plants one fault after the other in a copy of bpf/ and mrcd/, and says which the tests notice (`make mutants`).

Each fault is one replacement in one file. First the tests nearest to it run; if they pass, the whole unit and packet
rings do. A fault that survives both is printed, and the exit status is 1. --tree names another checkout, an older one
for example, to compare.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
WIDE = ("tests/unit", "tests/packet")


@dataclass(frozen=True)
class Mutant:
    """A fault: the only `old` below `room` becomes `new`, with the effect `words`. `tests` are globs: the nearest."""

    room: str
    old: str
    new: str
    words: str
    tests: str


def _bpf(old: str, new: str, words: str, tests: str) -> Mutant:
    return Mutant("bpf", old, new, words, " ".join(f"tests/packet/test_{t}*.py" for t in tests.split()))


def _mrcd(old: str, new: str, words: str, tests: str) -> Mutant:
    return Mutant("mrcd", old, new, words, " ".join(f"tests/unit/test_{t}*.py" for t in tests.split()))


MUTANTS = (
    _bpf(
        "stats->lost_bursts >= LOST_BURSTS && aged(j->now, stats->lag_ns, overdue_ns(j))",
        "stats->lost_bursts >= LOST_BURSTS",
        "an EV fails as soon as bursts are lost, before overdue_us has passed",
        "judge",
    ),
    _bpf(
        "\tif (stats->lost_bursts)\n\t\treturn 0;\n\tif (health.loss_any)",
        "\tif (health.loss_any)",
        "the loss rule judges an EV of which nothing arrives",
        "judge",
    ),
    _bpf(
        "\t\tstats->offset = (__u32)ev->tx_packets - delta->packets;\n\tif ((__s16)",
        "\t\t;\n\tif ((__s16)",
        "packets in flight when a generation begins are never reconciled",
        "judge model",
    ),
    _bpf(
        "stats->lost_bursts = stats->lost_bursts > 1;",
        "stats->lost_bursts = 0;",
        "one arrival acquits an EV at once",
        "judge",
    ),
    _bpf(
        "j->evs.below_limit >= j->evs.above_limit &&",
        "1 &&",
        "an EV fails by its loss ratio though most other EVs lose alike",
        "judge",
    ),
    _bpf(
        "if (!(__u32)word || word >> 54 != epoch)",
        "if (!(__u32)word)",
        "the replay window does not begin anew with new tables",
        "auth model",
    ),
    _bpf(
        "return inner == ECN_NOT_ECT ? ECN_INVALID : ECN_CE;",
        "return ECN_CE;",
        "a CE mark on a packet without ECN is not dropped",
        "pop deliver model",
    ),
    _bpf(
        "MRC_EV_SKIP, MRC_EV_GOOD) == MRC_EV_SKIP;",
        "MRC_EV_SKIP, MRC_EV_GOOD) != MRC_EV_SKIP;",
        "a congested EV does not skip its turn",
        "balance push",
    ),
    _bpf(
        "rotation->slot[plane] = out->slot + 1;",
        "rotation->slot[plane] = out->slot;",
        "a plane uses one EV only",
        "push",
    ),
    _bpf(
        "return count_bits(peer->usable) > (peer->floor ?: 1) &&",
        "return",
        "an EV is withdrawn below the floor",
        "tick_shared",
    ),
    _bpf("c->most = peer->floor ? peer->floor : 1;", "c->most = 1;", "the floor is not filled", "states"),
    _bpf(
        "\tif (o->mrc->receiver != bpf_htons(settings.host_id))\n\t\treturn MRC_DROP_WRONG_RECEIVER;\n",
        "",
        "packets for another host are accepted",
        "pop",
    ),
    _bpf(
        "\tif (!same_address(&o->ip6->saddr, a->peer->address[a->plane & (MRC_MAX_PLANES - 1)]))\n"
        "\t\treturn MRC_DROP_WRONG_SOURCE;\n",
        "",
        "the outer source is not checked",
        "pop",
    ),
    _bpf(
        "is_believed = !(c->mrc.flags & MRC_FLAG_DIAGNOSTIC);",
        "is_believed = 1;",
        "a tool's request changes what is known of the peer",
        "answer_probe auth",
    ),
    _bpf("\t\tpackets = segments;\n", "\t\t;\n", "a burst counts as one packet", "pop deliver"),
    _bpf(
        "\tif ((__s32)(seq - stats->reply_seq) <= 0)\n\t\treturn MRC_DROP_NONE;",
        "\tif (0)\n\t\treturn MRC_DROP_NONE;",
        "an overtaken reply is applied",
        "answer_probe judge auth states",
    ),
    _bpf(
        "\tif (!is_first(replay->replies, number, 0))\n\t\treturn MRC_DROP_REPLAYED;\n",
        "",
        "a recorded reply is applied again",
        "auth",
    ),
    _bpf(
        "return age < AGE_MAX_NS && age > -AHEAD_MAX_NS;",
        "return age < AGE_MAX_NS;",
        "packets of the future are accepted",
        "auth",
    ),
    _bpf(
        "stats->lag_ns || stats->good < health.good_probes ||",
        "stats->lag_ns ||",
        "one answer returns a failed EV",
        "tick",
    ),
    _bpf(
        "if (after > most)\n",
        "if (after > most * 1000)\n",
        "a budget that nobody used grows without bound",
        "tick",
    ),
    _bpf(
        "return missing >= T0_PROBES && !has",
        "return missing > 0 && !has",
        "one lost probe convicts a T0's link for all peers",
        "tick",
    ),
    _bpf(
        "plane_mask &= ~distant_planes(p, planes, plane_mask);",
        "",
        "a plane that is far longer than the others carries data",
        "balance",
    ),
    _bpf(
        "\t\tif (!aged(now, gap->ns, window_ns))\n\t\t\treturn 1;",
        "\t\tif (1)\n\t\t\treturn 1;",
        "a gap is hidden for ever",
        "tcp",
    ),
    _bpf(
        "if (same_address(&outer->saddr, peer->address[plane_number & (MRC_MAX_PLANES - 1)]))\n",
        "if (0 && same_address(&outer->saddr, peer->address[plane_number & (MRC_MAX_PLANES - 1)]))\n",
        "the peer's own ICMPv6 error fails its path",
        "icmp",
    ),
    _bpf(
        "return dequeue && address - dequeue + QDISC_CODE < 2 * QDISC_CODE;",
        "return dequeue && address;",
        "what a driver frees without a reason counts as unsent",
        "unsent",
    ),
    _bpf(
        "skb->priority = skb->tc_index & (ALONE - 1);",
        ";",
        "packets lose their priority at mrc0 in packet granularity",
        "push",
    ),
    _bpf(
        "choice->avoid = 1u << (slot->plane & 31);",
        "choice->avoid = 0;",
        "both copies of a critical packet take one plane",
        "critical",
    ),
    _bpf(
        "return skb->tstamp_type == BPF_SKB_TSTAMP_DELIVERY_MONO ? skb->tstamp : 0;",
        "return skb->tstamp;",
        "held packets count as sent at the push in packet granularity",
        "balance",
    ),
    _bpf(
        "inner_host(eth + 1, (void *)(long)skb->data_end, eth->h_proto, 1) == settings.host_id;",
        "1;",
        "a host sends from foreign addresses",
        "source",
    ),
    _mrcd("& (ratio >= _MIN_FACTOR * usual)", "", "grey loss needs not stand out from the other EVs", "grey"),
    _mrcd(
        "        dataplane.write_health(plan)  # first",
        "        # first",
        "a reload does not change [health] in the running programs",
        "adopt",
    ),
    _mrcd(
        "has_key[:, slot] & (accepted == key_id).any(axis=1)",
        "has_key[:, slot]",
        "a host sends with a key that its peer does not have yet",
        "keyring",
    ),
    _mrcd(
        "            if other_host != host:\n",
        "            if False:\n",
        "two hosts may have the same prefix",
        "config",
    ),
    _mrcd(
        "return 40 + max(8 + 16 * len(h.segments) for h in hops)",
        "return 40",
        "the fallback route's MTU is too small by the SRH",
        "routes",
    ),
    _mrcd(
        "for s in reversed(segments[1:]))",
        "for s in segments[1:])",
        "the segment list of an SRH is in travel order",
        "write_tables",
    ),
    _mrcd(
        "return _IPV6 + srh_bytes(self.paths.most_segments) + _UDP + _MRC",
        "return _IPV6 + _UDP + _MRC",
        "the inner MTU forgets the SRH",
        "topology",
    ),
    _mrcd(
        "return max(0.0, min(self.until - now, self.until - self.since))",
        "return max(0.0, self.until - now)",
        "a denial lasts too long while the clock is wrong after a boot",
        "denial",
    ),
    _mrcd(
        "return sorted(values)[-2:][0]",
        "return sorted(values)[-1]",
        "one view alone names a bad link of the fleet",
        "localise",
    ),
)


def _copy(tree: Path, to: Path) -> None:
    names = subprocess.run(["git", "-C", str(tree), "ls-files", "-z"], capture_output=True, check=True).stdout
    for name in names.decode().split("\0"):
        if not name or name == "tests/unit/test_mutants.py":  # it would notice each for its text
            continue
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / name, to / name)
    (to / ".venv").symlink_to(tree / ".venv")


def _pytest(tree: Path, tests: list[str], log: Path) -> bool:
    argv = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *tests]
    with log.open("a") as out:
        return subprocess.run(argv, cwd=tree, stdout=out, stderr=out, env={**os.environ}).returncode == 0


def _build(tree: Path) -> bool:
    return subprocess.run(["make", "-s", "build"], cwd=tree, capture_output=True).returncode == 0


def holder(mutant: Mutant, tree: Path) -> Path | None:
    """Returns the file that has the text; None unless it is there just once."""
    files = (tree / mutant.room).rglob("*.[ch]" if mutant.room == "bpf" else "*.py")
    holders = [f for f in files for _ in range(f.read_text().count(mutant.old))]
    return holders[0] if len(holders) == 1 else None


def noticed(mutant: Mutant, file: Path | None, tree: Path, log: Path) -> str:
    """Returns by what the mutant was noticed, "" if it survived."""
    if file is None:
        return "NOT PLANTED: the text must be there once"
    text = file.read_text()
    try:
        file.write_text(text.replace(mutant.old, mutant.new))
        if mutant.room == "bpf" and not _build(tree):
            return "NOT PLANTED: it does not compile"
        near = [str(p.relative_to(tree)) for g in mutant.tests.split() for p in sorted(tree.glob(g))]
        if near and not _pytest(tree, near, log):
            return "the nearest tests"
        return "" if _pytest(tree, list(WIDE), log) else "the whole rings"
    finally:
        file.write_text(text)


def main() -> int:
    """Plants the mutants and prints a line per mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="the checkout whose copy is changed")
    parser.add_argument("--only", default="", help="only mutants whose file or words contain this")
    options = parser.parse_args()
    log = Path(tempfile.gettempdir()) / "mrcd-mutants.log"
    died = tried = 0
    with tempfile.TemporaryDirectory(prefix="mrcd-mutants-") as where:
        tree = Path(where)
        _copy(options.tree.resolve(), tree)
        if not _build(tree):
            sys.exit("mutants: the copy does not compile")
        for mutant in MUTANTS:
            file, began = holder(mutant, tree), time.monotonic()
            name = f"{file.relative_to(tree) if file else mutant.room}: {mutant.words}"
            if options.only in name:
                by = noticed(mutant, file, tree, log)
                tried += 1
                died += bool(by) and not by.startswith("NOT")
                print(f"{by or 'SURVIVED':<20} {name} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{died} of {tried} noticed; pytest's output is in {log}")
    return died != tried


if __name__ == "__main__":
    sys.exit(main())
