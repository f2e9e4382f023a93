# SPDX-License-Identifier: BSD-2-Clause
"""Speaks etcd's v3 API over its JSON gateway: HTTP POST, keys and values in base64 (etcd 3.4 and newer).

A request that an endpoint does not answer goes to the next one. The endpoint that answered last is asked first.
https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/ describes the requests.
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import random
import ssl
import stat
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any

import aiohttp

from mrcd.auth import secrets_file
from mrcd.config.sections import Fleet, base_url
from mrcd.errors import ConfigError, MachineError

log = logging.getLogger("mrcd.fleet.etcd")

_CONNECT_S, _ANSWER_S = 2.0, 4.0
_QUIET_S = 300.0  # a watch without news for so long is opened anew, in case its connection is dead
_MOST_BYTES = 64 << 20  # of one answer
_MOST_OPERATIONS = 100  # of a transaction; etcd takes 128
_USER_BYTES = 4096

# gRPC's status codes (https://grpc.io/docs/guides/status-codes/): another member may answer these better.
_ELSEWHERE = {1, 4, 13, 14}
_NOT_FOUND, _DENIED, _UNAUTHENTICATED = 5, 7, 16


class EtcdError(MachineError):
    """etcd refused a request. `code` is gRPC's status code."""

    def __init__(self, message: str, code: int = 0, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class EtcdAway(EtcdError):
    """No endpoint answered, or a watch has ended."""


@dataclass(frozen=True)
class Value:
    """The value of a key; `revision` is that of its last change."""

    data: bytes
    revision: int


@dataclass(frozen=True)
class Snapshot:
    """All keys under a prefix, at one revision of one etcd cluster."""

    cluster: str
    revision: int
    values: Mapping[str, Value]


@dataclass(frozen=True)
class Change:
    """A key with its new value; None: it was deleted."""

    key: str
    value: Value | None


class Etcd:
    """A client. Use as an async context manager. All methods raise EtcdError."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._endpoints = [base_url(url) for url in fleet.etcd]
        self._at = random.randrange(len(self._endpoints))  # hosts spread over the members
        self._token: str | None = None
        self.ahead_s = 0.0
        """How far etcd's clock is ahead of this host's; 0 if they agree within some seconds."""
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "Etcd":
        await asyncio.to_thread(lambda: aiohttp.ClientSession)  # its import takes 0.1 s
        tls = await asyncio.to_thread(_tls, self._fleet)
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._session.close()

    @property
    def endpoint(self) -> str:
        """Return the endpoint that answered last."""
        return self._endpoints[self._at]

    # ---- requests ----

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys that begin with `prefix`, as the majority of the members has them."""
        answer = await self._ask("kv/range", {"key": _b64(prefix), "range_end": _b64(_end(prefix))})
        values = {_key(kv): _value(kv) for kv in answer.get("kvs", [])}
        header = answer["header"]
        return Snapshot(str(header["cluster_id"]), int(header["revision"]), values)

    async def put(self, key: str, data: bytes, *, lease: int = 0, if_revision: int | None = None) -> int | None:
        """Set a key, and return the revision; None if its revision is another than `if_revision` (0: no key)."""
        put = {"key": _b64(key), "value": _b64(data), "lease": str(lease)}
        if if_revision is None:
            answer = await self._ask("kv/put", put)
        else:
            compare = {"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(if_revision)}
            answer = await self._ask("kv/txn", {"compare": [compare], "success": [{"request_put": put}]})
            if not answer.get("succeeded"):
                there = (await self.read(key)).values.get(key)
                return there.revision if there and there.data == data else None  # an answer to this request was lost
        return int(answer["header"]["revision"])

    async def delete(self, keys: list[str]) -> None:
        """Delete keys."""
        deletes = [{"request_delete_range": {"key": _b64(key)}} for key in keys]
        for n in range(0, len(deletes), _MOST_OPERATIONS):
            await self._ask("kv/txn", {"success": deletes[n : n + _MOST_OPERATIONS]})

    async def grant(self, ttl_s: int) -> int:
        """Return a new lease: keys put with it vanish `ttl_s` seconds after the last `keep`."""
        return int((await self._ask("lease/grant", {"TTL": str(ttl_s)}))["ID"])

    async def keep(self, lease: int) -> bool:
        """Keep a lease for its whole time again. Return False if it has expired."""
        answer = await self._ask("lease/keepalive", {"ID": str(lease)})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys. It may have ended already."""
        try:
            await self._ask("lease/revoke", {"ID": str(lease)})
        except EtcdError as e:
            if e.code != _NOT_FOUND:
                raise

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[list[Change]]:
        """Yield the changes under `prefix` from `revision` on, in order. An empty list says that the watch has begun.

        Raises EtcdAway when the connection ends or is quiet for five minutes, or when etcd has forgotten `revision`.
        """
        request = {"key": _b64(prefix), "range_end": _b64(_end(prefix)), "start_revision": str(revision)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_QUIET_S)
        url = f"{self.endpoint}/v3/watch"
        try:
            async with self._session.post(
                url,
                json={"create_request": request},
                headers=self._headers(),
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise _refused(response.status, await response.read())
                async for line in _lines(response.content):
                    yield _changes(json.loads(line))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            raise EtcdAway(f"{url}: {_why(e)}") from None
        raise EtcdAway(f"{url}: the watch ended")

    # ---- endpoints ----

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, from the first endpoint that has one."""
        failed = []
        # Requests run side by side: each asks all endpoints, whichever another has found meanwhile.
        for at in [(self._at + n) % len(self._endpoints) for n in range(len(self._endpoints))]:
            try:
                answer = await self._ask_authenticated(self._endpoints[at], path, body)
            except EtcdError as e:
                if not isinstance(e, EtcdAway) and e.code not in _ELSEWHERE:
                    raise
                failed.append(f"{self._endpoints[at]}: {e.args[0]}")
                if self._at == at:
                    self._at = (at + 1) % len(self._endpoints)
            else:
                self._at = at
                return answer
        raise EtcdAway(
            f"no endpoint of etcd answers: {'; '.join(sorted(failed))}",
            hint="check that etcd runs, and the URLs in [fleet] etcd",
        )

    async def _ask_authenticated(self, endpoint: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._fleet.user_file and self._token is None:
            await self._authenticate(endpoint, self._fleet.user_file)
        try:
            return await self._post(endpoint, path, body)
        except EtcdError as e:
            if e.code != _UNAUTHENTICATED or not self._fleet.user_file:
                raise
            await self._authenticate(endpoint, self._fleet.user_file)  # a token expires, or a member does not know it
            return await self._post(endpoint, path, body)

    async def _authenticate(self, endpoint: str, user_file: str) -> None:
        self._token = None
        name, password = await asyncio.to_thread(_user, user_file)
        answer = await self._post(endpoint, "auth/authenticate", {"name": name, "password": password})
        self._token = str(answer["token"])

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    async def _post(self, endpoint: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._post_once(f"{endpoint}/v3/{path}", body)
        except aiohttp.ServerDisconnectedError:  # while the connection was idle: make a new one
            try:
                return await self._post_once(f"{endpoint}/v3/{path}", body)
            except aiohttp.ServerDisconnectedError as e:
                raise EtcdAway(_why(e)) from None

    async def _post_once(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        if self._session.closed:  # under a request that came while the connection was lost
            raise EtcdAway("this host is connecting anew")
        try:
            request = self._session.post(url, json=body, headers=self._headers(), allow_redirects=False)
            async with request as response:
                content = await response.read()
                self.ahead_s = ahead_s(response.headers.get("Date"), time.time(), self.ahead_s)
                if response.status != 200:
                    raise _refused(response.status, content)
                answer = json.loads(content)
                if not isinstance(answer, dict):
                    raise ValueError("not a JSON object")
                return answer
        except aiohttp.ServerDisconnectedError:
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
            raise EtcdAway(_why(e)) from None


_AGREE_S = 3.0  # `Date` has whole seconds, and an answer takes some time


def ahead_s(date: str | None, now: float, before: float) -> float:
    """Return how far a clock is ahead by an HTTP header `Date` that has just come; `before` if that is still right."""
    try:
        found = parsedate_to_datetime(date or "").timestamp() + 0.5 - now
    except ValueError:
        return before
    known = 0.0 if abs(found) < _AGREE_S else before
    return known if abs(found - known) < _AGREE_S else found


# ---- answers ---------------------------------------------------------------------------------


def _refused(status: int, content: bytes) -> EtcdError:
    """Return the error of an answer: {"error", "message", "code"}, with `message` alone in newer versions."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        document = json.loads(content)
        said, code = str(document.get("message") or document["error"]), int(document["code"])
        hint = None
        if code == _DENIED:
            hint = "the user in [fleet] user_file may not do this: see docs/security.md"
        elif "too large" in said:
            hint = "etcd takes 1.5 MiB; raise its --max-request-bytes"
        return EtcdError(said, code, hint=hint)
    return EtcdAway(f"HTTP status {status}: is this an etcd with the v3 API?")


def _changes(document: Any) -> list[Change]:
    """Return the changes in one message of a watch. Raises EtcdError, ValueError."""
    if not isinstance(document, dict) or not isinstance(result := document.get("result"), dict):
        raise EtcdAway(f"the watch ended: {document}")
    if result.get("canceled"):
        why = f"revision {result['compact_revision']} is compacted" if "compact_revision" in result else None
        raise EtcdAway(f"the watch ended: {why or result.get('cancel_reason', 'no reason given')}")
    events = result.get("events", [])
    return [Change(_key(e["kv"]), None if e.get("type") == "DELETE" else _value(e["kv"])) for e in events]


async def _lines(stream: "aiohttp.StreamReader") -> AsyncIterator[bytes]:
    """Yield lines of any length; aiohttp's own are bounded by a small buffer."""
    parts: list[bytes] = []
    size = 0
    async for chunk in stream.iter_any():
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            whole = b"".join([*parts, line])
            parts, size = [], 0
            if whole.strip():
                yield whole
        parts.append(rest)
        size += len(rest)
        if size > _MOST_BYTES:
            raise ValueError(f"a line of more than {_MOST_BYTES} bytes")


def _key(kv: Mapping[str, Any]) -> str:
    return base64.b64decode(kv["key"]).decode("utf-8", "replace")


def _value(kv: Mapping[str, Any]) -> Value:
    return Value(base64.b64decode(kv.get("value", "")), int(kv["mod_revision"]))


def _b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _end(prefix: str) -> bytes:
    """Return the first key after all that begin with `prefix`."""
    data = prefix.encode()
    return data[:-1] + bytes([data[-1] + 1])


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientSSLError):
        return str(getattr(error, "certificate_error", None) or error.os_error)
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno)
    return str(error) or type(error).__name__


# ---- files -----------------------------------------------------------------------------------


def _tls(fleet: Fleet) -> ssl.SSLContext | bool:
    """Return how endpoints are verified. Raises ConfigError."""
    if not any(url.startswith("https://") for url in fleet.etcd):
        return True
    files = f"ca_file {fleet.ca_file}"
    try:
        context = ssl.create_default_context(cafile=fleet.ca_file)
        if fleet.cert_file and fleet.key_file:
            files = f"cert_file {fleet.cert_file} or key_file {fleet.key_file}"
            context.load_cert_chain(fleet.cert_file, fleet.key_file)
    except OSError as e:  # ssl.SSLError is one; neither names the file
        hint = "name PEM files that the user mrcd can read"
        raise ConfigError(f"[fleet] {files}: {e.strerror or e}", hint=hint) from None
    return context


def _user(name: str) -> tuple[str, str]:
    """Return name and password in the user file. Raises ConfigError."""
    path = secrets_file.path_of(name)
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(_USER_BYTES)
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}", hint="[fleet] user_file must be readable for mrcd") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} is open to other users (mode {stat.S_IMODE(mode):04o})", hint=f"`chmod 600 {path}`")
    user, colon, password = data.decode("utf-8", "replace").strip("\r\n").partition(":")
    if not (user and colon and password) or "\n" in password:
        raise ConfigError(f"{path}: not one line NAME:PASSWORD", hint="write the name and password of a user of etcd")
    return user, password
