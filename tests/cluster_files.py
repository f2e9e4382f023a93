# SPDX-License-Identifier: BSD-2-Clause
"""Builds cluster files as text, from a table per host and path."""


def host(n: int, **other: object) -> str:
    """Returns one [[hosts]] table; `other` replaces its values, as TOML; `more` is appended."""
    values = {"name": f'"h{n}"', "id": n, "t0": 0, "port": n, "prefixes": f'["10.99.0.{n + 1}/32"]'} | other
    more = values.pop("more", "")
    return "[[hosts]]\n" + "".join(f"{k} = {v}\n" for k, v in values.items()) + f"{more}\n"


def dual(n: int, t0: int, port: int) -> str:
    """Returns the table of a host with an address of each IP version."""
    return host(n, t0=t0, port=port, prefixes=f'["10.99.0.{n + 1}/32", "fd00:99::{n + 1}/128"]')


def path(**other: object) -> str:
    """Returns one [[paths]] table; `other` replaces its values, as TOML."""
    values = {"source": '"h0"', "peer": '"h1"', "plane": 0, "segments": '["5f00:0:1::"]'} | other
    return "[[paths]]\n" + "".join(f"{k} = {v}\n" for k, v in values.items())


TWO = host(0) + host(1)
