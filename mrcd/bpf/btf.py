"""What tables are like: by an object before it is loaded, and by the kernel, of those that another version has pinned.

The layout of their values is BTF's.
"""

import ctypes as ct
from typing import NamedTuple

import numpy as np

from mrcd.bpf import libbpf

_INT, _ARRAY, _STRUCT, _ENUM = 1, 3, 4, 6
_NAMES_FOR_OTHERS = (8, 9, 10, 11)  # typedef, volatile, const, restrict


class Shape(NamedTuple):
    """What must agree for a pinned table to be used again."""

    kind: int  # enum bpf_map_type
    key_size: int  # bytes
    value_size: int  # bytes; of one CPU's value in per-CPU tables
    entries: int
    flags: int


class _Type(ct.Structure):
    """struct btf_type; what belongs to its kind follows."""

    _fields_ = [("name_off", ct.c_uint32), ("info", ct.c_uint32), ("size", ct.c_uint32)]

    @property
    def kind(self) -> int:
        return int(self.info) >> 24 & 0x1F

    @property
    def length(self) -> int:
        return int(self.info) & 0xFFFF


class _Member(ct.Structure):
    """struct btf_member; struct btf_enum has the number in the place of the type."""

    _fields_ = [("name_off", ct.c_uint32), ("type", ct.c_uint32), ("offset", ct.c_uint32)]


class _Enumerator(ct.Structure):
    _fields_ = [("name_off", ct.c_uint32), ("value", ct.c_int32)]


class _Array(ct.Structure):
    _fields_ = [("type", ct.c_uint32), ("index_type", ct.c_uint32), ("length", ct.c_uint32)]


def map_shape(fd: int) -> Shape:
    """The shape of a map that exists."""
    info = libbpf.info(fd)
    return Shape(info.type, info.key_size, info.value_size, info.max_entries, info.map_flags)


def value_type(fd: int) -> tuple[int, int]:
    """Ids of a map's BTF and, in it, of its values' type; 0 if it has none."""
    info = libbpf.info(fd)
    return info.btf_id, info.btf_value_type_id


def declared_shape(m: int, entries: int) -> Shape:
    """The shape that a map of an object will have with so many entries."""
    of = (getattr(libbpf.lib(), f"bpf_map__{what}")(ct.c_void_p(m)) for what in ("type", "key_size", "value_size"))
    kind, key_size, value_size = of
    return Shape(kind, key_size, value_size, entries, libbpf.lib().bpf_map__map_flags(ct.c_void_p(m)))


def enumerator(obj: int, enum: str, name: str) -> int | None:
    """The value of an enumerator in the BTF of an opened object; None if it has no such thing."""
    types = libbpf.lib().bpf_object__btf(ct.c_void_p(obj))
    if not types:
        return None
    number = libbpf.lib().btf__find_by_name_kind(ct.c_void_p(types), enum.encode(), _ENUM)
    if number <= 0:
        return None
    address, found = _type(types, number)
    for i in range(found.length):
        at = _Enumerator.from_address(address + ct.sizeof(_Type) + i * ct.sizeof(_Enumerator))
        if _name(types, at.name_off) == name:
            return int(at.value)
    return None


_FORMER = {"ports": "plane_mask", "ports_ns": "plane_mask_ns", "relapses": "flaps"}
"""Fields of tables before ABI version 9 → their names now: an upgrade reads such tables once."""


def values(map_fd: int) -> np.dtype[np.void] | None:
    """The layout of a map's values: a structured dtype with the names and offsets of the C struct; None if the
    kernel does not know it."""
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
    found.names = tuple(_FORMER.get(name, name) for name in found.names)
    return found


def _type(types: int, number: int) -> tuple[int, _Type]:
    address = libbpf.check("find a type", libbpf.lib().btf__type_by_id(ct.c_void_p(types), ct.c_uint32(number)))
    return address, _Type.from_address(address)


def _name(types: int, offset: int) -> str:
    address = libbpf.lib().btf__name_by_offset(ct.c_void_p(types), ct.c_uint32(offset))
    return ct.string_at(address).decode() if address else ""


def _dtype(types: int, number: int) -> np.dtype[np.void]:
    """Unsigned numbers, arrays and structs of these; anything else as so many bytes."""
    address, found = _type(types, number)
    if found.kind in _NAMES_FOR_OTHERS:
        return _dtype(types, found.size)  # their `size` is the type that they name
    if found.kind in (_INT, _ENUM):
        return np.dtype(f"u{found.size}")
    behind = address + ct.sizeof(_Type)
    if found.kind == _ARRAY:
        array = _Array.from_address(behind)
        return np.dtype((_dtype(types, array.type), (array.length,)))
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
