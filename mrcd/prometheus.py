# SPDX-License-Identifier: BSD-2-Clause
"""Asks the HTTP API of a Prometheus server, or of one that answers like it.

Credentials and certificates are in a file as promtool's --http.config.file reads it:
https://prometheus.io/docs/prometheus/latest/configuration/promtool/
"""

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mrcd.errors import MachineError, UsageError

_SUCH_AS = "the URL ends before /api/v1, such as http://prometheus:9090"

T = TypeVar("T")
Sample = tuple[dict[str, str], float]
Series = tuple[dict[str, str], list[tuple[float, float]]]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BasicAuth(_Part):
    """A user and a password, or a file that has it."""

    username: str
    password: str | None = None
    password_file: Path | None = None


class Authorization(_Part):
    """The Authorization header: a type, and credentials or a file that has them."""

    type: str = "Bearer"
    credentials: str | None = None
    credentials_file: Path | None = None


class TlsConfig(_Part):
    """Certificates."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure_skip_verify: bool = False


class HttpConfig(_Part):
    """Address and credentials of Prometheus."""

    basic_auth: BasicAuth | None = None
    authorization: Authorization | None = None
    tls_config: TlsConfig = Field(default_factory=TlsConfig)

    @model_validator(mode="after")
    def _has_one_way(self) -> "HttpConfig":
        if self.basic_auth and self.authorization:
            raise ValueError("basic_auth and authorization exclude each other")
        return self


def read_config(path: Path) -> HttpConfig:
    """Reads a file with credentials and certificates. Raises UsageError."""
    try:
        return HttpConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        hint = "known keys: basic_auth, authorization, tls_config, as for promtool --http.config.file"
        raise UsageError(
            f"{path}: {where}: {first['msg']}" if where else f"{path}: {first['msg']}", hint=hint
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} is not YAML: {' '.join(str(e).split())}") from None


def one_of(label: str, values: Iterable[str]) -> str:
    """Returns a selector for a label with one of these values."""
    return f"{label}=~{json.dumps('|'.join(re.escape(v) for v in values))}"


class Prometheus:
    """A server. `timeout`: seconds for each answer. Raises UsageError if the URL or the configuration is wrong."""

    def __init__(self, url: str, timeout: float, config: HttpConfig) -> None:
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # brackets that do not match, or a port that is no number
            is_url = False
        if not is_url or any(c <= " " or c == "\x7f" for c in url):
            raise UsageError(f"{url!r} is not a URL of Prometheus", hint="such as http://prometheus:9090")
        if parts.username is not None:  # not repeated in the message, which logs keep
            raise UsageError("the URL of Prometheus has credentials", hint="--http-config FILE is for them")
        self.url, self._timeout = url.rstrip("/"), timeout
        self._headers = {"Accept": "application/json"}
        header = _authorization(config)
        if header:
            self._headers["Authorization"] = header
        handlers = [urllib.request.HTTPSHandler(context=_context(config.tls_config))] if parts.scheme == "https" else []
        self._opener = urllib.request.build_opener(_NoRedirect, *handlers)

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Returns the samples of an expression at a time (Unix time, seconds), now by the server's clock if it is None.

        Raises MachineError.
        """
        time = {} if at is None else {"time": f"{at:.3f}"}
        return self._ask("query", lambda s: (s["metric"], float(s["value"][1])), query=expression, **time)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Returns the series of an expression, as pairs of time and value. Raises MachineError."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return self._ask(
            "query_range",
            lambda s: (s["metric"], [(float(t), float(v)) for t, v in s["values"]]),
            query=expression,
            **times,
        )

    def _ask(self, what: str, read: Callable[[Any], T], **form: str) -> list[T]:
        """Returns what `read` makes of each series of the answer."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/{what}", urlencode(form | {"timeout": f"{self._timeout:g}s"}).encode(), self._headers
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                document = json.load(answer)
            if document["status"] != "success":
                raise MachineError(f"Prometheus at {self.url}: {document.get('error', 'no reason given')}")
            return [read(series) for series in document["data"]["result"]]
        except urllib.error.HTTPError as e:
            raise self._refused(e) from None
        except (urllib.error.URLError, OSError, http.client.HTTPException) as e:
            cause = getattr(e, "reason", e)
            what_failed = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause).strip()
            hint = "is the URL right? --timeout waits longer, --http-config FILE has certificates"
            raise MachineError(f"Prometheus at {self.url} does not answer: {what_failed}", hint=hint) from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise MachineError(f"{self.url} does not answer as Prometheus does", hint=_SUCH_AS) from None

    def _refused(self, e: urllib.error.HTTPError) -> MachineError:
        if e.code in (401, 403):
            hint = "--http-config FILE with basic_auth or authorization"
            return MachineError(f"Prometheus at {self.url} refuses the credentials (status {e.code})", hint=hint)
        try:
            reason = str(json.load(e)["error"])
        except (ValueError, LookupError, TypeError, RecursionError, OSError, http.client.HTTPException):
            reason = str(e.reason)
        is_other = e.code in (404, 405)
        message = f"Prometheus at {self.url} answers with status {e.code}: {reason}"
        return MachineError(message, hint=_SUCH_AS if is_other else None)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because it could take the credentials elsewhere."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _secret(text: str | None, path: Path | None) -> str:
    if path is None:
        return text or ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path}: {getattr(e, 'strerror', None) or e}") from None


def _authorization(config: HttpConfig) -> str | None:
    if basic := config.basic_auth:
        pair = f"{basic.username}:{_secret(basic.password, basic.password_file)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    if given := config.authorization:
        return f"{given.type} {_secret(given.credentials, given.credentials_file)}"
    return None


def _context(tls: TlsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as e:
        files = " ".join(str(f) for f in (tls.ca_file, tls.cert_file, tls.key_file) if f)
        raise UsageError(f"certificates of {files}: {e.strerror or e}") from None
    if tls.insecure_skip_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
