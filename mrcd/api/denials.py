"""The part of the control API by which administrators deny paths and take that back."""

from typing import Any

from aiohttp import web

from mrcd.api import incoming
from mrcd.denials import policy
from mrcd.denials.control import DenialControl
from mrcd.denials.policy import Target
from mrcd.errors import UsageError

_NUMBERS = ("ev", "plane")
_FLAGS = ("force", "drain", "all")


class DenialsApi:
    """Handlers over one daemon's denials."""

    def __init__(self, denials: DenialControl) -> None:
        self._denials = denials

    def routes(self) -> list[web.RouteDef]:
        """What they answer to."""
        return [
            web.get("/v1/denials", self.denials),
            web.post("/v1/deny", self.deny),
            web.post("/v1/allow", self.allow),
        ]

    async def denials(self, _: web.Request) -> web.Response:
        """What is denied, until when and why; what of it is still under way."""
        return web.json_response(self._denials.document())

    async def deny(self, request: web.Request) -> web.Response:
        """Take paths out of use: "target", or "peer", "ev" and "plane"; "for", "reason", "force", "drain"."""
        asked = await _asked(request)
        target = _target(asked)
        answer = await self._denials.deny(
            target,
            for_s=None if asked.get("for") is None else policy.duration_s(asked["for"]),
            reason=policy.checked_reason(asked.get("reason") or ""),
            uid=incoming.uid(request),
            drain=asked["drain"],
            force=asked["force"],
        )
        return web.json_response(answer)

    async def allow(self, request: web.Request) -> web.Response:
        """Take denials back: of a target as for `deny`, or "all"."""
        asked = await _asked(request)
        target = None if asked["all"] else _target(asked)
        return web.json_response(await self._denials.allow(target, incoming.uid(request)))


async def _asked(request: web.Request) -> dict[str, Any]:
    body = await incoming.body(request)
    for names, kind, what in ((_NUMBERS, int, "a number"), (("peer", "for", "reason"), str, "text")):
        for name in names:
            if not (body.get(name) is None or type(body[name]) is kind):
                raise UsageError(f"{name} is not {what}")
    words = body.get("target")
    if not (words is None or (isinstance(words, list) and all(type(w) is str for w in words))):
        raise UsageError("target is not a list of words")
    if not all(type(body.get(name, False)) is bool for name in _FLAGS):
        raise UsageError(f"{', '.join(_FLAGS)} are true or false")
    return body | {name: body.get(name, False) for name in _FLAGS}


def _target(asked: dict[str, Any]) -> Target:
    words = list(asked.get("target") or [])
    words += [f"{k}:{asked[k]}" for k in ("peer", "ev", "plane") if asked.get(k) is not None]
    return policy.parse(words)
