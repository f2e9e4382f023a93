# SPDX-License-Identifier: BSD-2-Clause
"""Checks that the daemon imports parts of packages, and that the other parts are there when they are used."""

import subprocess
import sys

IN_PART = """\
import sys
from mrcd.partial_imports import import_in_part
import_in_part("aiohttp")
import_in_part("pyroute2")
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", IN_PART + code], check=True)


def test_the_daemon_imports_only_the_parts_that_it_uses() -> None:
    run(
        "import mrcd.api.server, mrcd.daemon.reload, mrcd.fleet.member\n"
        "unused = {'aiohttp.client', 'aiohttp.connector', 'pyroute2.ndb', 'yaml', 'scapy'} & set(sys.modules)\n"
        "assert not unused, unused"
    )


def test_the_other_parts_are_imported_when_they_are_used() -> None:
    run(
        "import aiohttp\n"
        "from aiohttp import web\n"
        "from pyroute2.iproute import IPRoute\n"
        "assert 'aiohttp.client' not in sys.modules and 'pyroute2.ndb' not in sys.modules\n"
        "import pyroute2\n"
        "assert issubclass(aiohttp.ClientConnectorError, aiohttp.ClientError)\n"
        "assert 'aiohttp.client' in sys.modules and aiohttp.web is web and pyroute2.IPRoute is IPRoute\n"
        "assert pyroute2.NDB and not hasattr(aiohttp, 'no_such_name')"
    )


def test_a_failed_import_is_tried_again_and_threads_wait_for_it() -> None:
    run(
        "import importlib.machinery, threading, aiohttp\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'aiohttp.client': raise ImportError('no such file')\n"
        "sys.meta_path.insert(0, Missing())\n"
        "for _ in range(2):\n"
        "    try: aiohttp.ClientSession\n"
        "    except ImportError as e: assert 'no such file' in str(e)\n"
        "    else: raise AssertionError\n"
        "del sys.meta_path[0]\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda: found.append(aiohttp.ClientSession)) for _ in range(4)]\n"
        "[t.start() for t in threads]\n"
        "[t.join() for t in threads]\n"
        "assert len(found) == 4"
    )


def test_a_package_that_is_imported_already_stays_whole() -> None:
    run("import json\nimport_in_part('json')\nassert json.loads('1') == 1 and '__getattr__' not in vars(json)")
