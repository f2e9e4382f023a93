# SPDX-License-Identifier: BSD-2-Clause
"""Stands in for etcd's client where a test is about the API."""

from mrcd.fleet.etcd import Snapshot, Value


class MemoryEtcd:
    """The keys of an etcd in memory."""

    endpoint = "http://memory"
    ahead_s = 0.0

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.leases: dict[str, int] = {}  # seconds of the keys' leases; 0: none
        self.revision = 0

    async def read(self, prefix: str) -> Snapshot:
        return Snapshot("1", self.revision, {k: v for k, v in self.values.items() if k.startswith(prefix)})

    async def put(self, key: str, data: bytes, *, lease: int = 0, if_revision: int | None = None) -> int | None:
        before = self.values.get(key)
        if if_revision is not None and if_revision != (before.revision if before else 0):
            return None
        self.revision += 1
        self.values[key], self.leases[key] = Value(data, self.revision), lease
        return self.revision

    async def delete(self, keys: list[str]) -> None:
        for key in keys:
            self.values.pop(key, None)
            self.leases.pop(key, None)

    async def grant(self, ttl_s: int) -> int:
        """Returns the seconds, as the id of a lease."""
        return ttl_s

    async def revoke(self, lease: int) -> None:
        await self.delete([key for key, seconds in self.leases.items() if seconds == lease])
