"""Which kernel package is the newest, and what the matrix prints."""

from labkit.kernels import matrix, newcomer, packages
from labkit.kernels.matrix import Row


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
    assert packages.newest(names, "6.1") == "linux-image-6.1.0-56-amd64-unsigned"
    assert packages.newest(names, "6.12") == "linux-image-6.12.117+deb12-amd64-unsigned"
    assert packages.newest(names, "6.6") is None


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


def test_what_a_kernel_cannot_do_is_named_and_is_no_failure() -> None:
    cannot = {"part": "tunnels", "check": "GRE", "ok": True, "words": "no such device", "cell": matrix.NOT_HAD}
    lines = matrix.lines([Row("6.1", (*row("", ("tunnels", "VXLAN", True, -1)).checks, cannot))])
    assert lines[-2].split() == ["tunnels", "1", "of", "2"]
    assert lines[-1] == "not had 6.1: tunnels: GRE: no such device"


def test_a_new_machine_shares_the_directories_that_pip_is_told_of_and_none_of_the_system() -> None:
    file = "[global]\nfind-links = /opt/wheels\nextra-index-url = file:///srv/simple https://pypi.org/simple\n"
    environment = {"PIP_FIND_LINKS": "/mnt/more", "PIP_CERT": "/etc/ssl/certs/all.crt", "HOME": "/media/user/x"}
    assert newcomer.directories(environment, [file]) == ["/mnt", "/opt", "/srv"]
    assert newcomer.directories({}, []) == []
