# SPDX-License-Identifier: BSD-2-Clause
"""Reads the shapes and value layouts of maps, from an object before it is loaded and from the kernel.

The layouts come from BTF, so tables that another version of mrcd has pinned can be read too.
"""

import ctypes as ct
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mrcd.kernel import libbpf

_INT, _ARRAY, _STRUCT, _ENUM = 1, 3, 4, 6
_SIGNED = 1  # BTF_INT_SIGNED
_ALIASES = (8, 9, 10, 11)  # typedef, volatile, const, restrict


class Shape(NamedTuple):
    """The properties that must be equal for a pinned table to be used again."""

    kind: int  # enum bpf_map_type
    key_size: int  # bytes
    value_size: int  # bytes; of one CPU's value in per-CPU tables
    entries: int
    flags: int


class _Type(ct.Structure):
    """struct btf_type; data that depends on its kind follows."""

    _fields_ = [("name_off", ct.c_uint32), ("info", ct.c_uint32), ("size", ct.c_uint32)]

    @property
    def kind(self) -> int:
        return int(self.info) >> 24 & 0x1F

    @property
    def length(self) -> int:
        return int(self.info) & 0xFFFF


class _Member(ct.Structure):
    """struct btf_member."""

    _fields_ = [("name_off", ct.c_uint32), ("type", ct.c_uint32), ("offset", ct.c_uint32)]


class _Enumerator(ct.Structure):
    """struct btf_enum."""

    _fields_ = [("name_off", ct.c_uint32), ("value", ct.c_int32)]


class _Array(ct.Structure):
    """struct btf_array."""

    _fields_ = [("type", ct.c_uint32), ("index_type", ct.c_uint32), ("length", ct.c_uint32)]


def map_shape(fd: int) -> Shape:
    """Returns the shape of an existing map."""
    info = libbpf.info(fd)
    return Shape(info.type, info.key_size, info.value_size, info.max_entries, info.map_flags)


def value_type(fd: int) -> tuple[int, int]:
    """Returns the id of a map's BTF and the id of its values' type there; 0 if it has none."""
    info = libbpf.info(fd)
    return info.btf_id, info.btf_value_type_id


def declared_shape(m: int, entries: int) -> Shape:
    """Returns the shape that a map of an object will have with `entries` entries."""
    of = (getattr(libbpf.lib(), f"bpf_map__{what}")(ct.c_void_p(m)) for what in ("type", "key_size", "value_size"))
    kind, key_size, value_size = of
    return Shape(kind, key_size, value_size, entries, libbpf.lib().bpf_map__map_flags(ct.c_void_p(m)))


@contextmanager
def of_object(path: Path) -> Iterator[int]:
    """Reads the BTF of a compiled object for a block: a `struct btf *`."""
    types = libbpf.check(f"read the types of {path}", libbpf.lib().btf__parse(os.fsencode(path), None))
    try:
        yield types
    finally:
        libbpf.lib().btf__free(ct.c_void_p(types))


def enumerators(types: int, enum: str) -> dict[str, int]:
    """Returns the values of an enum by name; empty if BTF does not have it."""
    number = libbpf.lib().btf__find_by_name_kind(ct.c_void_p(types), enum.encode(), _ENUM)
    if number <= 0:
        return {}
    address, found = _type(types, number)
    each = (_Enumerator * found.length).from_address(address + ct.sizeof(_Type))
    return {_name(types, e.name_off): int(e.value) for e in each}


def struct(types: int, name: str) -> np.dtype[np.void]:
    """Returns the layout of a struct with the names and offsets of its fields."""
    number = libbpf.lib().btf__find_by_name_kind(ct.c_void_p(types), name.encode(), _STRUCT)
    return _dtype(types, libbpf.check(f"find struct {name}", number))


_FORMER_NAMES = {"ports": "plane_mask", "ports_ns": "plane_mask_ns", "relapses": "flaps"}
"""Former field name → present name. An upgrade reads tables of ABI versions before 9 once."""


def values(map_fd: int) -> np.dtype[np.void] | None:
    """Returns the layout of a map's values as a structured dtype with the names and offsets of the C struct.

    None if the kernel has no BTF for it.
    """
    btf_id, type_id = value_type(map_fd)
    if not btf_id or not type_id:
        return None
    types = libbpf.check("read the types of a table", libbpf.lib().btf__load_from_kernel_by_id(btf_id))
    try:
        found = _dtype(types, type_id)
    finally:
        libbpf.lib().btf__free(ct.c_void_p(types))
    if not found.names:
        return None
    found.names = tuple(_FORMER_NAMES.get(name, name) for name in found.names)
    return found


def _type(types: int, number: int) -> tuple[int, _Type]:
    address = libbpf.check("find a type", libbpf.lib().btf__type_by_id(ct.c_void_p(types), ct.c_uint32(number)))
    return address, _Type.from_address(address)


def _name(types: int, offset: int) -> str:
    address = libbpf.lib().btf__name_by_offset(ct.c_void_p(types), ct.c_uint32(offset))
    return ct.string_at(address).decode() if address else ""


def _dtype(types: int, number: int) -> np.dtype[np.void]:
    """Returns the dtype of numbers, and of arrays and structs of these; other types become plain bytes."""
    address, found = _type(types, number)
    if found.kind in _ALIASES:
        return _dtype(types, found.size)  # the field `size` of an alias holds the id of its type
    behind = address + ct.sizeof(_Type)
    if found.kind in (_INT, _ENUM):
        is_signed = found.kind == _INT and ct.c_uint32.from_address(behind).value >> 24 & _SIGNED
        return np.dtype(f"{'i' if is_signed else 'u'}{found.size}")
    if found.kind == _ARRAY:
        array = _Array.from_address(behind)
        element = _dtype(types, array.type)
        return np.dtype((element.base, (array.length, *element.shape)))
    if found.kind != _STRUCT:
        return np.dtype(f"V{found.size}")
    members = [_Member.from_address(behind + i * ct.sizeof(_Member)) for i in range(found.length)]
    return np.dtype(
        {
            "names": [_name(types, m.name_off) for m in members],
            "formats": [_dtype(types, m.type) for m in members],
            "offsets": [m.offset // 8 for m in members],
            "itemsize": found.size,
        }
    )
