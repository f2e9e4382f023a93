# SPDX-License-Identifier: BSD-2-Clause
"""Lists the paths of the control API, as mrcd serves them."""

from unittest.mock import MagicMock

from mrcd.api.server import Api


def routes() -> list[str]:
    """Returns each path once, in the order of the server: "/v1/status"."""
    router = Api(MagicMock(), MagicMock(), MagicMock()).application().router
    return list(dict.fromkeys(resource.canonical for resource in router.resources()))
