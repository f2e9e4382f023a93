# SPDX-License-Identifier: BSD-2-Clause
"""Serves deny, allow and the list of denials. mrcd/denials/deny_and_allow.py applies them."""

from typing import Any

from aiohttp import web

from mrcd.api import incoming
from mrcd.denials import targets
from mrcd.denials.deny_and_allow import DenialControl
from mrcd.denials.targets import Target
from mrcd.errors import UsageError

_NUMBERS = ("ev", "plane")
_FLAGS = ("force", "drain", "all")


class DenialsApi:
    """The handlers of one daemon's denials."""

    def __init__(self, denials: DenialControl) -> None:
        self._denials = denials

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the handlers."""
        return [
            web.get("/v1/denials", self.denials),
            web.post("/v1/deny", self.deny),
            web.post("/v1/allow", self.allow),
        ]

    async def denials(self, _: web.Request) -> web.Response:
        """Return the denials with their ends and reasons, and the packets in flight on their EVs."""
        return web.json_response(self._denials.document())

    async def deny(self, request: web.Request) -> web.Response:
        """Deny paths. Keys: "target", or "peer", "ev" and "plane"; "for", "reason", "force", "drain"."""
        given = await parsed(request)
        target = target_in(given)
        answer = await self._denials.deny(
            target,
            for_s=None if given.get("for") is None else targets.duration_s(given["for"]),
            reason=targets.checked_reason(given.get("reason") or ""),
            uid=incoming.uid(request),
            drain=given["drain"],
            force=given["force"],
        )
        return web.json_response(answer)

    async def allow(self, request: web.Request) -> web.Response:
        """End denials of a target, with the keys of `deny`, or of "all"."""
        given = await parsed(request)
        target = None if given["all"] else target_in(given)
        return web.json_response(await self._denials.allow(target, incoming.uid(request)))


async def parsed(request: web.Request) -> dict[str, Any]:
    """Return the checked keys of a request to deny or allow. Raises UsageError."""
    body = await incoming.body(request)
    for names, kind, what in ((_NUMBERS, int, "a number"), (("peer", "for", "reason"), str, "text")):
        for name in names:
            if not (body.get(name) is None or type(body[name]) is kind):
                raise UsageError(f"{name} must be {what}")
    words = body.get("target")
    if not (words is None or (isinstance(words, list) and all(type(w) is str for w in words))):
        raise UsageError("target must be a list of strings")
    if not all(type(body.get(name, False)) is bool for name in _FLAGS):
        raise UsageError(f"{', '.join(_FLAGS)} must be true or false")
    return body | {name: body.get(name, False) for name in _FLAGS}


def target_in(given: dict[str, Any]) -> Target:
    """Return the target that these keys name. Raises UsageError."""
    words = list(given.get("target") or [])
    words += [f"{k}:{given[k]}" for k in ("peer", "ev", "plane") if given.get(k) is not None]
    return targets.parse(words)
