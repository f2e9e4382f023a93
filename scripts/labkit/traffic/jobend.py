# SPDX-License-Identifier: BSD-2-Clause
"""Runs one rank of a training job. A program of its own, run inside a host of the lab (job.py starts it).

    jobend.py RANK RANKS STORE ADDRESS BYTES

Joins the other ranks through the file STORE, with gloo over TCP from ADDRESS, and prints a JSON object: `ready`. Then,
for each line with a number on its stdin, runs that many all-reduces of BYTES. After each it prints a JSON object:
`begin_ns` and `end_ns`, by CLOCK_MONOTONIC. It ends with its stdin. It runs with the Python that has PyTorch, which is
not the project's.
"""

import datetime
import importlib
import json
import sys
import time

TIMEOUT_S = 60
FLOAT_BYTES = 4


def say(**facts: object) -> None:
    """Prints one line for the parent."""
    print(json.dumps(facts), flush=True)


def run(rank: int, ranks: int, store: str, address: str, length: int) -> None:
    """Runs until stdin closes. Raises RuntimeError if the sum is wrong, or another rank does not answer."""
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    options = dist.ProcessGroupGloo._Options()  # noqa: SLF001 - PyTorch has no public names for these
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
    options._timeout = datetime.timedelta(seconds=TIMEOUT_S)  # noqa: SLF001
    group = dist.ProcessGroupGloo(dist.FileStore(store, ranks), rank, ranks, options)
    data = torch.full((length // FLOAT_BYTES,), float(rank + 1))
    group.allreduce([data]).wait()
    if not bool((data == ranks * (ranks + 1) / 2).all()):
        raise RuntimeError("the ranks' sum is wrong")
    data.zero_()  # keeps the next sum at the same value
    say(ready=True)
    for line in sys.stdin:
        group.barrier().wait()
        begin_ns = time.monotonic_ns()
        for _ in range(int(line)):
            group.allreduce([data]).wait()
            end_ns = time.monotonic_ns()
            say(begin_ns=begin_ns, end_ns=end_ns)
            begin_ns = end_ns


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
