# SPDX-License-Identifier: BSD-2-Clause
"""Names the keys of a fleet in etcd, and reads and makes their values. Pure.

    PREFIX/want/file             the cluster file, TOML text as `mrcctl fleet put` or `etcdctl put` wrote it
    PREFIX/want/trial            another cluster file, which a few hosts run first, JSON; with a lease
    PREFIX/want/denials/TARGET   a fleet-wide denial, JSON
    PREFIX/hosts/NAME            what a host runs, and what it refuses, JSON; with a lease that the host keeps

Administrators write PREFIX/want/; hosts only read it. Each host writes its own key under PREFIX/hosts/.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from mrcd.denials import record
from mrcd.denials.record import Denial
from mrcd.denials.targets import Target
from mrcd.fleet.etcd import Value

_FORMAT = 1  # version of the JSON documents
_MOST_CHARACTERS = 2000  # of a text in a report


@dataclass(frozen=True)
class FleetFile:
    """A cluster file from etcd. Its generation is etcd's revision of the key: a later file has a larger one."""

    generation: int
    text: str

    @property
    def sha256(self) -> str:
        """Return the first digits of the text's SHA-256."""
        return digest(self.text)


@dataclass(frozen=True)
class Trial:
    """A cluster file that only these hosts run, until its key vanishes."""

    file: FleetFile
    hosts: Sequence[str]


@dataclass(frozen=True)
class Wanted:
    """The wanted state of every host, from etcd. `unreadable`: keys that this version does not understand → reason."""

    file: FleetFile | None = None
    trial: Trial | None = None
    denials: Mapping[Target, Denial] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def trial_on(self, host: str) -> FleetFile | None:
        """Return the file that a host is to try; None if it is not."""
        return self.trial.file if self.trial and host in self.trial.hosts else None


def _printable(text: str) -> str:
    """Return a text of another host as one line that a terminal may show."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])


_Text = Annotated[str, AfterValidator(_printable)]
_Count = Annotated[int, Field(ge=0)]


class _Trial(BaseModel):
    hosts: list[_Text]
    text: str


class _Refusal(BaseModel):
    generation: int
    why: _Text


class _File(BaseModel):
    generation: int | None
    sha256: _Text
    refused: _Refusal | None


class _Traffic(BaseModel):
    target: _Text
    since: float = 0.0  # an older mrcd does not say it
    evs: _Count
    in_flight_packets: _Count
    unreported_evs: _Count
    empty: bool
    lost_packets: _Count | None


class _RefusedDenial(BaseModel):
    target: _Text
    since: float = 0.0  # an older mrcd does not say it
    why: _Text


class _Report(BaseModel):
    """The report of a host. Another host wrote it: nothing is taken for granted."""

    version: _Text
    file: _File
    pending: bool = False
    lost_peers: list[_Text] = []
    denials: list[_Traffic]
    refused_denials: list[_RefusedDenial]


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.all = f"{prefix}/"
        self.want = f"{prefix}/want/"
        self.file = f"{self.want}file"
        self.trial = f"{self.want}trial"
        self.denials = f"{self.want}denials/"
        self.hosts = f"{prefix}/hosts/"

    def denial(self, target: Target) -> str:
        """Return the key of the denial of a target."""
        return f"{self.denials}{target}"

    def host(self, name: str) -> str:
        """Return the key of a host's report."""
        return f"{self.hosts}{name}"

    def wanted(self, values: Mapping[str, Value]) -> Wanted:
        """Return what these keys and values want; other keys are ignored."""
        file, trial, denials, unreadable = None, None, {}, {}
        for key, value in values.items():
            try:
                if key == self.file:
                    file = FleetFile(value.revision, value.data.decode())
                elif key == self.trial:
                    found = _Trial.model_validate(_document(value.data))
                    trial = Trial(FleetFile(value.revision, found.text), found.hosts)
                elif key.startswith(self.denials):
                    read = record.from_json(_document(value.data)["denial"])
                    denial = replace(read, last_path_until=None)  # each host has its own
                    if self.denial(denial.target) != key:
                        raise ValueError(f"it is about {denial.target}")
                    denials[denial.target] = denial
            except (ValueError, KeyError, RecursionError) as e:
                unreadable[key] = str(e)
        return Wanted(file, trial, denials, unreadable)

    def reports(self, values: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
        """Return the reports of the hosts by name; those that this version does not understand are left out."""
        found = {}
        for key, value in values.items():
            if key.startswith(self.hosts):
                try:
                    report = _Report.model_validate(_document(value.data))
                except (ValueError, RecursionError):
                    continue
                found[_printable(key.removeprefix(self.hosts))] = report.model_dump()
        return found


def trial_value(text: str, hosts: Sequence[str], lease: int) -> bytes:
    """Return the value of the key of a trial. The lease tells it from another one of the same text."""
    return _encoded({"hosts": list(hosts), "text": text, "lease": lease})


def denial_value(denial: Denial) -> bytes:
    """Return the value of a denial's key."""
    return _encoded({"denial": record.as_json(denial)})


def report_value(report: Mapping[str, Any]) -> bytes:
    """Return the value of a host's key."""
    return _encoded(report)


def digest(text: str) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a cluster file."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps({"schema_version": _FORMAT, **document}).encode()


def _document(data: bytes) -> dict[str, Any]:
    document = json.loads(data)
    if not isinstance(document, dict) or document.get("schema_version") != _FORMAT:
        raise ValueError(f"not a document of version {_FORMAT}")
    return document
