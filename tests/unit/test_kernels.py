# SPDX-License-Identifier: BSD-2-Clause
"""Tests the choice of the newest kernel package, and the output of the matrix."""

import subprocess
from pathlib import Path

import pytest

from labkit.kernels import fresh_debian, matrix, packages
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


def test_a_new_machine_shares_the_directories_of_pip_and_none_of_the_system() -> None:
    file = "[global]\nfind-links = /opt/wheels\nextra-index-url = file:///srv/simple https://pypi.org/simple\n"
    environment = {"PIP_FIND_LINKS": "/mnt/more", "PIP_CERT": "/etc/ssl/certs/all.crt", "HOME": "/media/user/x"}
    assert fresh_debian.directories(environment, [file]) == ["/mnt", "/opt", "/srv"]
    assert fresh_debian.directories({}, []) == []


@pytest.mark.parametrize(
    ("parts", "is_ok", "status", "error"),
    [
        (("smoke",), True, 0, ""),
        (("smoke",), False, 1, ""),  # the check says why
        (("smoke",), True, 137, "exit status 137"),  # it died after its last ok
        (("smoke", "life", "packets"), True, 0, "nothing was reported of life, packets"),
    ],
)
def test_checks_that_end_early_are_no_success(parts: tuple[str, ...], is_ok: bool, status: int, error: str) -> None:
    checks = ({"part": "smoke usid", "check": "ping", "ok": is_ok, "words": "why"},)
    found = matrix.judge("6.1", parts, checks, status, "")
    assert (error in found.error, bool(found.error)) == (True, bool(error))
    assert found.ok == (is_ok and not error)
