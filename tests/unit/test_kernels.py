# SPDX-License-Identifier: BSD-2-Clause
"""Tests the choice of the newest kernel package, and the output of the matrix."""

import subprocess
from pathlib import Path

import pytest

from labkit.kernels import fresh_debian, matrix, packages
from labkit.kernels.matrix import Row
from mrcd.errors import MachineError


def test_the_newest_is_by_number_and_neither_cloud_nor_rt() -> None:
    names = """
        linux-image-6.1.0-9-amd64-unsigned
        linux-image-6.1.0-56-amd64-unsigned
        linux-image-6.1.0-57-cloud-amd64-unsigned
        linux-image-6.1.0-57-rt-amd64-unsigned
        linux-image-6.1.0-58-amd64
        linux-image-6.12.9+deb12-amd64-unsigned
        linux-image-6.12.117+deb12-amd64-unsigned
    """
    assert packages.newest(names.split(), "6.1") == "linux-image-6.1.0-56-amd64-unsigned"
    assert packages.newest(names.split(), "6.12") == "linux-image-6.12.117+deb12-amd64-unsigned"
    assert packages.newest(names.split(), "6.6") is None


class Apt:
    """Stands in for apt: its packages before and after an update of its lists, and whether it can download."""

    def __init__(self, before: str, after: str, *, serves: str = "") -> None:
        self.known, self._after, self._serves = before, after, serves
        self.updates = 0

    def __call__(self, argv: list[str], cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        status = 0
        if "update" in argv:
            self.known, self.updates = self._after, self.updates + 1
        elif "download" in argv:
            assert cwd is not None
            (cwd / "it.deb").touch()
            status = 100 * (self._serves != argv[-1])
        elif argv[0] == "dpkg":
            (Path(argv[-1]) / "lib/modules" / Path(argv[-1]).name).mkdir(parents=True)
        return subprocess.CompletedProcess(argv, status, self.known, "404 Not Found" if status else "")


OLD, NEW = "linux-image-6.1.0-56-amd64-unsigned", "linux-image-6.1.0-60-amd64-unsigned"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "CACHE", tmp_path)
    packages.update_lists.cache_clear()
    return tmp_path


def test_old_package_lists_are_updated(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt(OLD, NEW, serves=NEW)
    monkeypatch.setattr(packages, "completed", apt)
    assert packages.kernel("6.1").release == "6.1.0-60-amd64"
    assert apt.updates == 1


def test_the_newest_fetched_kernel_replaces_an_unavailable_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("6.1.0-9-amd64", "6.1.0-56-amd64", "6.12.117+deb12-amd64", "6.1.0-60-amd64"):
        (cache / release / "lib/modules" / release).mkdir(parents=True)
        (cache / release / "complete").touch()
    (cache / "6.1.0-60-amd64/complete").unlink()
    monkeypatch.setattr(packages, "completed", Apt(NEW, NEW))
    assert packages.kernel("6.1").release == "6.1.0-56-amd64"
    with pytest.raises(MachineError, match="knows no kernel"):
        packages.kernel("6.6")


def row(kernel: str, *checks: tuple[str, str, bool, int], error: str = "") -> Row:
    return Row(
        kernel,
        tuple(
            {"part": part, "check": check, "ok": ok, "words": "why"} | ({"instructions": n} if n >= 0 else {})
            for part, check, ok, n in checks
        ),
        error,
    )


def test_a_row_without_checks_is_no_success() -> None:
    assert not row("6.1").ok
    assert not row("6.1", ("smoke", "ping", True, -1), error="it stopped").ok
    assert row("6.1", ("smoke", "ping", True, -1)).ok


@pytest.mark.parametrize(
    ("parts", "status", "error"),
    [
        (("smoke",), 0, ""),
        (("smoke",), 137, "exit status 137"),  # it died after its last ok
        (("smoke", "life", "packets"), 0, "nothing was reported of life, packets"),
    ],
)
def test_checks_that_end_early_are_no_success(parts: tuple[str, ...], status: int, error: str) -> None:
    checks = row("", ("smoke usid", "ping", True, -1)).checks
    found = matrix.judge("6.1", parts, checks, status, "")
    assert error in found.error
    assert found.ok == (not error)


def test_a_failed_check_explains_the_exit_status() -> None:
    checks = row("", ("smoke", "ping", False, -1)).checks
    assert matrix.judge("6.1", ("smoke",), checks, 1, "").error == ""


def test_tables_name_the_kernel_and_the_program_that_failed() -> None:
    old = row("6.1", ("programs", "mrc_push, least", False, 0), ("programs", "mrc_pop, least", True, 70))
    new = row("6.18", ("programs", "mrc_push, least", True, 100), ("smoke", "ping", True, -1))
    lines = matrix.lines([old, new])
    assert [line.split() for line in lines if line.startswith("mrc_")] == [
        ["mrc_push", "least", "refused", "100"],
        ["mrc_pop", "least", "70", "-"],
    ]
    assert [" ".join(line.split()) for line in lines if line.startswith(("programs", "smoke"))] == [
        "programs FAILED, 1 of 2 1 of 1",
        "smoke - 1 of 1",
    ]
    each = matrix.lines([old, new], each=True)
    assert ["smoke", "ping", "-", "ok"] in [line.split() for line in each]
    assert lines[-1] == "FAILED 6.1: programs: mrc_push, least: why"


def test_missing_kernel_features_are_listed_and_are_no_failure() -> None:
    cannot = {"part": "tunnels", "check": "GRE", "ok": True, "words": "no such device", "cell": matrix.NOT_HAD}
    lines = matrix.lines([Row("6.1", (*row("", ("tunnels", "VXLAN", True, -1)).checks, cannot))])
    assert lines[-2].split() == ["tunnels", "1", "of", "2"]
    assert lines[-1] == "not had 6.1: tunnels: GRE: no such device"


def test_a_new_machine_shares_the_directories_of_pip_and_none_of_the_system() -> None:
    file = "[global]\nfind-links = /opt/wheels\nextra-index-url = file:///srv/simple https://pypi.org/simple\n"
    environment = {"PIP_FIND_LINKS": "/mnt/more", "PIP_CERT": "/etc/ssl/certs/all.crt", "HOME": "/media/user/x"}
    assert fresh_debian.directories(environment, [file]) == ["/mnt", "/opt", "/srv"]
    assert fresh_debian.directories({}, []) == []
