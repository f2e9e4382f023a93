# SPDX-License-Identifier: BSD-2-Clause
"""Lists the paths of the control API, as mrcd serves them."""

from unittest.mock import MagicMock

from mrcd.api.server import Api


def routes(method: str | None = None) -> list[str]:
    """Returns each path, of one HTTP method or of all, once, in the order of the server: "/v1/status"."""
    found = Api(MagicMock(), MagicMock(), MagicMock()).application().router.routes()
    return list(dict.fromkeys(r.resource.canonical for r in found if r.resource and method in (None, r.method)))
