# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/screenshots`: the command line."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click

from labkit import entry
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.patience import patience, wait_for
from labkit.places import REPOSITORY
from labkit.screenshots.browser import Browser, find_browser
from mrcd.errors import MachineError

ADDRESS = "http://127.0.0.1:9479"
CLUSTER = {"hosts": 8, "hosts_per_t0": 2, "planes": 4, "t1": 8}
SOURCE, TARGET, TARGET_ADDRESS = "h0", "h2", "10.99.0.3"
RATE = "300M"  # bits per second of the flow: small enough for any machine
FAULT = "t1:1:2"
WIDE, NARROW = (1600, 1000), (400, 900)  # CSS pixels
_HISTORY_S = 90.0  # of traffic, so that the curves show something
_SETTLED_S = 8.0  # after the fault

PICTURES = ("page-well.png", "page-fault.png", "page-fault-narrow.png")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--name", default="screenshots", show_default=True, help="name of its lab; an existing lab of that name is replaced"
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=REPOSITORY / "docs/images",
    help="directory of the pictures  [default: docs/images]",
)
def screenshots(name: str, directory: Path) -> None:
    """Photograph the web page of a host, before and while a T1 is dead (three minutes). Needs chromium."""
    if find_browser() is None:
        raise MachineError("no chromium is installed", hint="apt-get install chromium")
    entry.check_writable(directory)
    with entry.own_lab(name) as lab:
        lab.up(**CLUSTER)
        observe.wait_until_good(lab, lab.fabric.hosts, patience(30.0))
        with _flow(lab), Browser(lambda argv, **kw: lab.popen(SOURCE, argv, **kw)) as browser:
            words = f"the flow {SOURCE} → {TARGET} has run for {_HISTORY_S:g} s"
            wait_for(words, lambda: _history_s(lab) >= _HISTORY_S, 180.0, every_s=1.0)
            well, fault, narrow = (directory / picture for picture in PICTURES)
            _photograph(browser, well, WIDE)
            lab.fail(FAULT)
            is_dead = f"document.querySelectorAll('.cell .ASSUMED_BAD').length > 0 && {_later(_SETTLED_S)}"
            browser.wait_until(is_dead, patience(60.0))
            _photograph(browser, fault, WIDE)
            _photograph(browser, narrow, NARROW, is_dark=True)
            if browser.faults:
                raise MachineError(f"the page has errors: {'; '.join(browser.faults)}")


def _later(seconds: float) -> str:
    """Returns an expression: that time has passed since the expression was evaluated for the first time."""
    return f"performance.now() - (window.beginMs ??= performance.now()) > {1000 * seconds:g}"


def _photograph(browser: Browser, path: Path, size: tuple[int, int], *, is_dark: bool = False) -> None:
    browser.resize(*size, is_dark=is_dark)
    if browser.evaluate("location.href") != f"{ADDRESS}/":
        browser.open(f"{ADDRESS}/")
    # Two polls with a rate in between: the peers' rates are differences.
    browser.wait_until("document.querySelectorAll('#peers tbody tr').length > 0", patience(20.0))
    browser.wait_until("performance.now() > 14000", patience(40.0))
    path.write_bytes(browser.screenshot())
    entry.progress(f"{path.name}: {size[0]} pixels wide")


@contextlib.contextmanager
def _flow(lab: Lab) -> Iterator[None]:
    """A block with a TCP flow from SOURCE to TARGET."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with lab.popen(TARGET, ["iperf3", "-s"], **quiet) as server:
        try:
            argv = ["iperf3", "-c", TARGET_ADDRESS, "-b", RATE, "-t", "600", "--connect-timeout", "5000"]
            with lab.popen(SOURCE, argv, **quiet) as client:
                try:
                    yield
                finally:
                    client.kill()
        finally:
            server.kill()


def _history_s(lab: Lab) -> float:
    """Returns for how long the host has sampled the rates of traffic."""
    with lab.inside(SOURCE), urllib.request.urlopen(f"{ADDRESS}/status.json", timeout=10) as answer:
        rates = json.load(answer)["rates"]
    used = [sum(p["tx_bits_per_s"][i] or 0 for p in rates["planes"]) > 1e6 for i in range(len(rates["at_s"]))]
    return float(sum(used) * rates["interval_s"])


def main() -> None:
    """Entry point."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    entry.main("scripts/screenshots", screenshots)
