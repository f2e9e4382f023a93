# SPDX-License-Identifier: BSD-2-Clause
"""Tests the package: metadata, commands, the object's place, the example file, the unit, scripts, man pages."""

import re
import subprocess
import sys
from configparser import ConfigParser
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import mrcd
from mrcd.api.metrics import page
from mrcd.config import cluster_file
from mrcd.errors import MachineError
from mrcd.fabric import topology
from mrcd.kernel import object_file

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "scripts" / "deploy"


@pytest.fixture
def setup_cfg() -> ConfigParser:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_commands_are_there() -> None:
    commands = {e.name: e for e in distribution("mrcd").entry_points if e.group == "console_scripts"}
    assert {name: e.value for name, e in commands.items()} == {
        "mrcd": "mrcd.main:main",
        "mrcctl": "mrcd.ctl.entry:main",
    }
    for command in commands.values():
        assert callable(command.load())


def test_version_has_one_source(setup_cfg: ConfigParser) -> None:
    assert setup_cfg["metadata"]["version"] == "attr: mrcd.__version__"
    assert distribution("mrcd").version == mrcd.__version__


def test_the_bcc_of_pypi_is_not_asked_for(setup_cfg: ConfigParser) -> None:
    # bcc on PyPI is another project; the binding comes from the system's python3-bpfcc.
    wanted = setup_cfg["options"]["install_requires"] + setup_cfg["options.extras_require"]["dev"]
    assert "bcc" not in wanted.split()


def test_the_packages_inside_an_installation_are_pinned_with_hashes(setup_cfg: ConfigParser) -> None:
    lines = (ROOT / "scripts/deploy/requirements.txt").read_text().splitlines()
    pins = dict(line.removesuffix(" \\").split("==") for line in lines if "==" in line)
    for wanted in map(Requirement, setup_cfg["options"]["install_requires"].split("\n")[1:]):
        assert wanted.specifier.contains(pins[wanted.name]), f"{wanted}: `make lock`"
    for line, after in pairwise(lines):
        assert "==" not in line or after.startswith("    --hash=sha256:"), line


def test_the_files_of_the_page_are_package_data(setup_cfg: ConfigParser) -> None:
    patterns = setup_cfg["options.package_data"]["mrcd.api.metrics"].split()
    for path in page.FILES.iterdir():
        assert any(path.relative_to(page.FILES.parent).match(pattern) for pattern in patterns), path


def test_a_missing_object_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_file, "__file__", str(tmp_path / "objects.py"))
    with pytest.raises(MachineError, match="not been compiled") as error:
        object_file.object_path()
    assert error.value.hint == "run `make build`"


def test_the_example_configuration_is_valid() -> None:
    cluster = cluster_file.load(DEPLOY / "mrcd.toml")
    assert len(cluster.hosts) == 4
    for host in cluster.hosts:
        plan = topology.plan(cluster, host.name)
        assert sorted(len(p.evs) for p in plan.peers) == [4, 256, 256]


def test_the_example_shows_the_defaults() -> None:
    """`# key = value` in the example is a default: uncommenting it changes nothing."""
    text = (DEPLOY / "mrcd.toml").read_text()
    shown = re.sub(r"(?m)^# (\w+ = )", r"\1", text)
    assert shown.count("\n# ") < text.count("\n# ")
    # Unset means a quarter of the peer's EVs, and a number by granularity, which the example spells out.
    unset = {"cluster": {"ev_min_active"}, "health": {"probe_packets", "probe_late_ms"}}
    assert cluster_file.parse(shown).model_dump(exclude=unset) == cluster_file.parse(text).model_dump(exclude=unset)


def test_the_role_installs_what_the_rpm_depends_on() -> None:
    described = yaml.safe_load((DEPLOY / "package/nfpm.yaml").read_text())["overrides"]["rpm"]["depends"]
    defaults = yaml.safe_load((DEPLOY / "ansible/roles/mrcd/defaults/main.yml").read_text())
    assert [d.replace("${FIRST_PYTHON}", "3.11") for d in described] == [*defaults["mrcd_rpm_depends"], "systemd"]


def test_the_unit_leaves_the_data_plane_alone() -> None:
    lines = (DEPLOY / "mrcd.service").read_text().splitlines()
    for line in ("Type=notify", "KillMode=process", "Restart=on-failure", "LimitCORE=0"):
        assert line in lines
    # Otherwise it would be emptied at every stop, with the files that mrcctl reads while mrcd is down.
    assert "RuntimeDirectoryPreserve=yes" in lines


@pytest.mark.parametrize(
    "script",
    [
        "scripts/set-up",
        "scripts/deploy/package/build",
        "scripts/deploy/package/in-root",
        "scripts/deploy/prolog-slurmctld",
        "scripts/deploy/task-prolog",
        "scripts/deploy/health-check",
        ".ci/run",
    ],
)
def test_shell_scripts(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111, f"{script} cannot be run"
    subprocess.run(["bash", "-n", path], check=True)


def test_make_help_lists_the_targets() -> None:
    text = subprocess.run(["make", "-C", ROOT, "help"], capture_output=True, text=True, check=True).stdout
    for target in ("help", "build", "set-up", "demo", "test", "lint", "bench", "install", "uninstall", "deb", "clean"):
        assert f"\n  {target} " in f"\n{text}"


# ---- man pages ----


def manpages(*args: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, str(ROOT / "scripts/deploy/manpages.py"), *args]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_pages_explain_states_files_and_examples(tmp_path: Path) -> None:
    done = manpages(str(tmp_path / "new" / "man"))
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "new" / "man" / "mrcctl.1").read_text()
    for section in ("EV STATES", "REASONS", "DROPS", "FILES", "EXAMPLES"):
        assert f".SH {section}\n" in page
    assert r"\fBASSUMED_BAD\fR" in page
    assert ".SH FILES\n" in (tmp_path / "new" / "man" / "mrcd.8").read_text()
    assert (tmp_path / "new" / "man" / "mrcd.toml.5").exists()


def test_wrong_arguments_are_no_traceback() -> None:
    assert manpages("--help").stdout.startswith("Usage: manpages.py [OPTIONS] DIRECTORY")
    done = manpages()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
