# SPDX-License-Identifier: BSD-2-Clause
"""Tests which files `make install` puts into a DESTDIR, and which `make uninstall` leaves."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mrcd

ROOT = Path(__file__).parents[2]
FILES = {
    "usr/local/bin/mrcd",
    "usr/local/bin/mrcctl",
    "usr/local/lib/systemd/network/10-mrcd.network",
    "usr/local/lib/systemd/networkd.conf.d/mrcd.conf",
    "usr/local/lib/systemd/system/mrcd.service",
    "usr/local/lib/sysusers.d/mrcd.conf",
    "usr/local/share/bash-completion/completions/mrcctl",
    "usr/local/share/fish/vendor_completions.d/mrcctl.fish",
    "usr/local/share/man/man1/mrcctl.1",
    "usr/local/share/man/man5/mrcd.toml.5",
    "usr/local/share/man/man8/mrcd.8",
    "usr/local/share/mrcd/alerts.yml",
    "usr/local/share/mrcd/dashboard.json",
    "usr/local/share/mrcd/health-check",
    "usr/local/share/mrcd/mrc.lua",
    "usr/local/share/mrcd/prolog-slurmctld",
    "usr/local/share/mrcd/recording.yml",
    "usr/local/share/mrcd/seccomp.json",
    "usr/local/share/mrcd/task-prolog",
    "usr/local/share/zsh/site-functions/_mrcctl",
    "etc/NetworkManager/conf.d/mrcd.conf",
    "etc/mrcd/mrcd.toml.example",
}
FILES |= {
    f"usr/local/share/mrcd/{p.relative_to(ROOT / 'scripts/deploy')}"
    for directory in ("ansible", "kubernetes")
    for p in (ROOT / "scripts/deploy" / directory).rglob("*.*")
}
FILES |= {f"usr/local/share/doc/mrcd/{p.relative_to(ROOT)}" for p in (ROOT / "docs").rglob("*.*")}
MANUALS = ("man1/mrcctl.1", "man5/mrcd.toml.5", "man8/mrcd.8")


@pytest.fixture
def tree(installed: Path, tmp_path: Path) -> Path:
    """Returns a copy that may be changed."""
    copy = tmp_path / "tree"
    subprocess.run(["cp", "--archive", "--link", str(installed), str(copy)], check=True)
    return copy


def _run(*argv: str | Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _listed(tree: Path) -> set[str]:
    """Returns all paths but directories."""
    return {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_symlink() or not p.is_dir()}


def test_installed_files_are_in_place_and_do_not_contain_the_destdir(installed: Path) -> None:
    assert {f for f in _listed(installed) if not f.startswith("usr/local/lib/mrcd/")} == FILES
    packages = installed / "usr/local/lib/mrcd/lib"
    assert list(packages.glob("python3.*/site-packages/mrcd/mrc.bpf.o"))
    assert (installed / "usr/local/bin/mrcctl").readlink() == Path("/usr/local/lib/mrcd/bin/mrcctl")
    command = (installed / "usr/local/lib/mrcd/bin/mrcctl").read_text()
    assert command.startswith("#!/usr/local/lib/mrcd/bin/python")
    found = subprocess.run(["grep", "-rlIF", "--exclude=*.pyc", str(installed), str(installed)], capture_output=True)
    assert not found.stdout


def test_uninstall_leaves_nothing_but_the_configuration(tree: Path) -> None:
    mine = tree / "etc/mrcd/mrcd.toml"
    mine.write_text("# mine\n")
    _run("make", "-C", ROOT, "uninstall", f"DESTDIR={tree}")
    assert _listed(tree) == {"etc/mrcd/mrcd.toml"}
    assert {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_dir()} <= {"etc", "etc/mrcd"}


def test_prefix_changes_the_installed_paths(tmp_path: Path) -> None:
    where = [f"DESTDIR={tmp_path}", "PREFIX=/opt/mrcd", "SYSCONFDIR=/opt/etc"]
    _run("make", "-C", ROOT, "install-files", *where)
    unit = (tmp_path / "opt/mrcd/lib/systemd/system/mrcd.service").read_text()
    commands = set(re.findall(r"(?m)^Exec(?:Start|Reload)=(\S+)", unit))
    assert commands == {"/opt/mrcd/bin/mrcd", "/opt/mrcd/bin/mrcctl"}
    assert (tmp_path / "opt/etc/mrcd/mrcd.toml.example").exists()
    _run("make", "-C", ROOT, "uninstall", *where)
    assert not _listed(tmp_path)


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed: `make set-up` installs it")
@pytest.mark.parametrize("page", MANUALS)
def test_man_pages_are_complete(installed: Path, page: str) -> None:
    path = installed / "usr/local/share/man" / page
    assert not _run("mandoc", "-T", "lint", "-W", "warning", path)
    text = re.sub(r".\x08", "", _run("mandoc", "-T", "utf8", path))
    assert "undocumented" not in text
    for words in {
        "mrcctl.1": ["mrcctl config check", "--timeout SECONDS", "Exit status"],
        "mrcd.toml.5": ["[cluster]", "hold_down_ms (integer, 1 to 3600000; default 1000)", "[[hosts]]", "web_config"],
        "mrcd.8": ["--bpffs", "--config", "mrcctl detach"],
    }[path.name]:
        assert words in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [(["pa"], "paths"), (["paths", "--st"], "--state"), (["paths", "--state", "ASS"], "ASSUMED_BAD")],
)
def test_bash_completes(installed: Path, typed: list[str], offered: str) -> None:
    script = installed / "usr/local/share/bash-completion/completions/mrcctl"
    text = f"""
        export PATH={ROOT}/.venv/bin:$PATH
        source {script}
        complete -p mrcctl >/dev/null || exit 1
        COMP_WORDS=(mrcctl {" ".join(typed)}) COMP_CWORD={len(typed)}
        _mrcctl_completion mrcctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert offered in _run("bash", "-c", text).split()


def _package(tree: Path, form: str, architecture: str) -> Path:
    """Makes a package of a copy of the installed files."""
    path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    argv = [str(a) for a in (ROOT / "scripts/deploy/package/build", form, tree, tree.parent, architecture)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env={"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    (package,) = tree.parent.glob(f"mrcd*.{form}")
    return package


def test_rpm(tree: Path) -> None:
    package = _package(tree, "rpm", "amd64")
    assert package.name == f"mrcd-{mrcd.__version__}-1.x86_64.rpm"
    assert package.read_bytes()[:4] == b"\xed\xab\xee\xdb"
    assert (tree / "usr/local/lib/mrcd/bin/python3").readlink().name.startswith("python3.")


def test_debian_package(tree: Path) -> None:
    package = _package(tree, "deb", "arm64")
    fields = dict(line.split(": ", 1) for line in _run("dpkg-deb", "--field", package).splitlines() if ": " in line)
    assert (fields["Package"], fields["Version"], fields["Architecture"]) == ("mrcd", mrcd.__version__, "arm64")
    assert "python3-bpfcc" in fields["Depends"]
    contents = {line.split()[5].removeprefix("./") for line in _run("dpkg-deb", "--contents", package).splitlines()}
    assert contents >= {f"{f}.gz" if "/man/" in f else f for f in FILES if not f.startswith("etc/NetworkManager")}
    for script in ("postinst", "prerm", "postrm"):
        text = _run("dpkg-deb", "--info", package, script)
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)
