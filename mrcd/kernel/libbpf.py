# SPDX-License-Identifier: BSD-2-Clause
"""Wraps the libbpf calls that mrcd needs; a failed call raises KernelError.

The daemon calls the libbpf that bcc links, where bcc is installed, else libbpf.so. That is all that bcc is used for;
nothing is compiled at run time. mrcctl opens libbpf.so, because bcc maps LLVM (70 MB) and mrcctl must start fast.
"""

import contextlib
import ctypes as ct
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from mrcd.errors import KernelError, MachineError

_TYPES: dict[str, Any] = {
    **{"char": ct.c_char, "u8": ct.c_uint8, "u32": ct.c_uint32, "u64": ct.c_uint64},
    **{"int": ct.c_int, "size_t": ct.c_size_t, "void*": ct.c_void_p},
}


def _fields(*lines: str) -> list[tuple[str, Any]]:
    """Returns the fields that C declares so: a type, then names, each with the length of its array, if it is one."""
    found = []
    for line in lines:
        kind, *names = line.split()
        for name, _, length in (n.partition(":") for n in names):
            found.append((name, _TYPES[kind] * int(length) if length else _TYPES[kind]))
    return found


class MapInfo(ct.Structure):
    """The beginning of struct bpf_map_info."""

    _fields_ = _fields(
        "u32 type id key_size value_size max_entries map_flags",
        "char name:16",
        "u32 ifindex btf_vmlinux_value_type_id",
        "u64 netns_dev netns_ino",
        "u32 btf_id btf_key_type_id btf_value_type_id",
    )


class ProgramInfo(ct.Structure):
    """struct bpf_prog_info."""

    _fields_ = _fields(
        "u32 type id",
        "u8 tag:8",
        "u32 jited_prog_len xlated_prog_len",
        "u64 _insns:2 load_time",
        "u32 created_by_uid nr_map_ids",
        "u64 map_ids",
        "char name:16",
        "u32 _device:2",
        "u64 _netns:2",
        "u32 _ksyms:2",
        "u64 _pointers:2",
        "u32 _btf:2",
        "u64 _func_info",
        "u32 _nr_info:2",
        "u64 _line_info:2",
        "u32 _nr_lines:4",
        "u64 _tags run_time_ns run_cnt recursion_misses",
        "u32 verified_insns _rest:3",
    )


class LinkCreateOpts(ct.Structure):
    """struct bpf_link_create_opts."""

    _fields_ = _fields("size_t sz", "u32 flags", "u8 _rest:52")


class TcHook(ct.Structure):
    """struct bpf_tc_hook."""

    _fields_ = _fields("size_t sz", "int ifindex attach_point", "u32 parent")


class TcOpts(ct.Structure):
    """struct bpf_tc_opts."""

    _fields_ = _fields("size_t sz", "int prog_fd", "u32 flags prog_id handle priority")


class TestRunOpts(ct.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = _fields(
        "size_t sz",
        "void* data_in data_out",
        "u32 data_size_in data_size_out",
        "void* ctx_in ctx_out",
        "u32 ctx_size_in ctx_size_out retval",
        "int repeat",
        "u32 duration flags cpu batch_size",
    )


class ProgramHead(ct.Structure):
    """The beginning of struct bpf_prog_info."""

    _fields_ = _fields("u32 type id")


class LinkInfo(ct.Structure):
    """struct bpf_link_info of XDP and TCX links, with room for later fields."""

    _fields_ = _fields("u32 type id prog_id _pad ifindex attach_type", "u8 _rest:40")


Info = TypeVar("Info", bound=ct.Structure)

XDP = 37
RAW_TRACEPOINT = 23
TCX_INGRESS = 46
TCX_EGRESS = 47
XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE = 1 << 1, 1 << 2
TC_INGRESS = 1
TC_EGRESS = 2
TC_REPLACE = 1
CLSACT_HANDLE = CLSACT_PRIORITY = 0x4D52  # identifies the filters of mrcd
_NO_FILTER = -errno.ENOENT, -errno.EINVAL, -errno.ENODEV

_PRINT = ct.CFUNCTYPE(ct.c_int, ct.c_int, ct.c_char_p, ct.c_void_p)
_SAMPLE = ct.CFUNCTYPE(ct.c_int, ct.c_void_p, ct.c_void_p, ct.c_size_t)

_POINTERS = (
    "bpf_object__open_file",
    "bpf_object__find_map_by_name",
    "bpf_object__find_program_by_name",
    "bpf_object__next_map",
    "bpf_object__next_program",
    "bpf_map__name",
    "bpf_program__name",
    "bpf_map__initial_value",
    "ring_buffer__new",
    "bpf_object__btf",
    "btf__load_from_kernel_by_id",
    "btf__parse",
    "btf__type_by_id",
    "btf__name_by_offset",
)
_lib: Any = None
_log: list[str] = []
_MAX_MESSAGE = 1 << 20  # bytes; the verifier's log is one message
_LINES_KEPT = 12  # the last lines of a message
_DEBUG = 2  # enum libbpf_print_level


def _print(level: int, fmt: bytes, args: int) -> int:
    """Stores libbpf's messages for the error of a failed call. The verifier's reason is at the end of its long log."""
    if level >= _DEBUG:
        return 0  # a thousand lines at each load, none of which is an error
    text = ct.create_string_buffer(_MAX_MESSAGE)
    _libc.vsnprintf(text, ct.c_size_t(_MAX_MESSAGE), fmt, ct.c_void_p(args))
    _log.extend(text.value.decode(errors="replace").rstrip().splitlines()[-_LINES_KEPT:])
    return 0


_print_callback = _PRINT(_print)
_libc = ct.CDLL(None, use_errno=True)


def use(lib: Any) -> None:
    """Makes all functions of this module use a library handle."""
    global _lib
    for name in _POINTERS:
        getattr(lib, name).restype = ct.c_void_p
    lib.libbpf_set_print.restype = ct.c_void_p
    lib.libbpf_set_print(_print_callback)
    _lib = lib


def lib() -> Any:
    """Returns the library handle: of the libbpf in bcc after use_bcc(), else of libbpf.so."""
    if _lib is None:
        try:
            use(ct.CDLL("libbpf.so.1", use_errno=True))
        except OSError as e:
            raise MachineError(
                f"libbpf cannot be loaded: {e}", hint="install the package libbpf1 (Debian) or libbpf (RHEL)"
            ) from None
    return _lib


def use_bcc() -> None:
    """Makes all functions of this module use the libbpf that bcc links, if bcc is installed; else libbpf.so."""
    try:
        from bcc import libbcc
    except (ImportError, OSError, AttributeError):  # not installed, or not as a whole
        lib()
        return
    # A handle of our own: on bcc's, calls are checked against bcc's structures (ctypes.ArgumentError on Debian 13).
    use(ct.CDLL(libbcc.lib._name, use_errno=True))  # noqa: SLF001 - documented by ctypes


def check(what: str, result: int | None, *, hint: str | None = None) -> int:
    """Returns a libbpf call's result. Raises KernelError with libbpf's messages if it is negative or a null pointer."""
    if result is None:
        code = ct.get_errno() or errno.EINVAL
    elif result < 0:
        code = -result
    else:
        _log.clear()
        return result
    messages = [line for line in _log if line][-_LINES_KEPT:]
    _log.clear()
    raise KernelError("\n  ".join([what, *messages]), code, hint=hint)


# ---- objects ----


def open_object(path: Path) -> int:
    """Opens a compiled object. Returns a `struct bpf_object *`."""
    return check(f"open {path.name}", lib().bpf_object__open_file(os.fsencode(path), None))


def load_object(obj: int) -> None:
    """Creates the maps that are not reused; verifies and loads the programs."""
    check("load the programs", lib().bpf_object__load(ct.c_void_p(obj)))


def leave_out(obj: int, name: str) -> None:
    """Has load_object() not load a program."""
    program = lib().bpf_object__find_program_by_name(ct.c_void_p(obj), name.encode())
    check(f"find program {name}", program)
    check(f"leave out {name}", lib().bpf_program__set_autoload(ct.c_void_p(program), ct.c_bool(False)))


def close_object(obj: int) -> None:
    """Frees an object, and closes every descriptor that it owns."""
    lib().bpf_object__close(ct.c_void_p(obj))


def maps_of(obj: int) -> dict[str, int]:
    """Returns the maps of an object: name → `struct bpf_map *`."""
    found: dict[str, int] = {}
    m = lib().bpf_object__next_map(ct.c_void_p(obj), None)
    while m:
        found[ct.string_at(lib().bpf_map__name(ct.c_void_p(m))).decode()] = m
        m = lib().bpf_object__next_map(ct.c_void_p(obj), ct.c_void_p(m))
    return found


def program_fd(obj: int, name: str) -> int:
    """Returns the descriptor of a loaded program, which the object owns."""
    prog = lib().bpf_object__find_program_by_name(ct.c_void_p(obj), name.encode())
    check(f"find program {name}", prog)
    return check(f"program {name}", lib().bpf_program__fd(ct.c_void_p(prog)))


def set_map_size(m: int, entries: int) -> None:
    """Sets the entries of a map before it is created."""
    check("size a map", lib().bpf_map__set_max_entries(ct.c_void_p(m), ct.c_uint32(entries)))


def set_initial_value(m: int, value: bytes) -> None:
    """Sets the contents of a global data section (.rodata) before the object is loaded."""
    check("set the settings", lib().bpf_map__set_initial_value(ct.c_void_p(m), value, ct.c_size_t(len(value))))


def initial_size(m: int) -> int:
    """Returns the size of a global data section in bytes."""
    size = ct.c_size_t()
    check("find the settings", lib().bpf_map__initial_value(ct.c_void_p(m), ct.byref(size)))
    return size.value


def reuse_map(m: int, fd: int) -> None:
    """Makes an object use an existing map instead of a new one; the caller may close `fd`."""
    check("reuse a pinned map", lib().bpf_map__reuse_fd(ct.c_void_p(m), fd))


def map_fd(m: int) -> int:
    """Returns the descriptor of a created map, which the object owns."""
    return check("map", lib().bpf_map__fd(ct.c_void_p(m)))


# ---- pins ----


def pin(fd: int, path: Path) -> None:
    """Pins a map, program or link."""
    check(f"pin {path}", lib().bpf_obj_pin(fd, os.fsencode(path)))


def get(path: Path) -> int:
    """Opens a pin. Returns a descriptor that the caller closes."""
    return check(f"open the pin {path}", lib().bpf_obj_get(os.fsencode(path)))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Opens a pin for a block, and yields its descriptor."""
    fd = get(path)
    try:
        yield fd
    finally:
        os.close(fd)


def fill(info: Info, fd: int) -> Info:
    """Fills `info` with the kernel's data on a program, map or link, and returns it."""
    size = ct.c_uint32(ct.sizeof(info))
    check("read the kernel's data on a BPF object", lib().bpf_obj_get_info_by_fd(fd, ct.byref(info), ct.byref(size)))
    return info


def info(fd: int) -> MapInfo:
    """Returns the kernel's data on a map."""
    return fill(MapInfo(), fd)


def map_info(fd: int) -> tuple[int, int, int]:
    """Returns key size and value size (bytes) and entries of a map."""
    found = info(fd)
    return found.key_size, found.value_size, found.max_entries


def link_ifindex(fd: int) -> int:
    """Returns the ifindex that a link is attached to; 0 if the interface is gone."""
    return int(fill(LinkInfo(), fd).ifindex)


def link_program(fd: int) -> int:
    """Returns the id of the program that a link attaches."""
    return int(fill(LinkInfo(), fd).prog_id)


def program_id(fd: int) -> int:
    """Returns the id of a loaded program."""
    return int(fill(ProgramHead(), fd).id)


# ---- attach ----


def create_link(prog_fd: int, ifindex: int, attach_type: int, flags: int = 0) -> int:
    """Attaches a program by a link: TCX, XDP, or a raw tracepoint (ifindex 0). The caller pins and closes the link."""
    opts = LinkCreateOpts(sz=ct.sizeof(LinkCreateOpts), flags=flags)
    return check("attach", lib().bpf_link_create(prog_fd, ifindex, attach_type, ct.byref(opts)))


def update_link(link_fd: int, prog_fd: int) -> None:
    """Replaces the program of a link atomically."""
    check("replace a program", lib().bpf_link_update(link_fd, prog_fd, None))


def attach_clsact(
    prog_fd: int, ifindex: int, point: int, handle: int = CLSACT_HANDLE, priority: int = CLSACT_PRIORITY
) -> None:
    """Attaches or replaces a program by a clsact filter, for kernels without TCX."""
    hook = TcHook(sz=ct.sizeof(TcHook), ifindex=ifindex, attach_point=point)
    result = lib().bpf_tc_hook_create(ct.byref(hook))
    if result != -errno.EEXIST:
        check("create a clsact qdisc", result)
    opts = TcOpts(sz=ct.sizeof(TcOpts), prog_fd=prog_fd, flags=TC_REPLACE, handle=handle, priority=priority)
    check("attach", lib().bpf_tc_attach(ct.byref(hook), ct.byref(opts)))


def detach_clsact(ifindex: int, point: int, handle: int = CLSACT_HANDLE, priority: int = CLSACT_PRIORITY) -> None:
    """Removes mrcd's filter, but not the qdisc or other filters. No error if the filter does not exist."""
    hook = TcHook(sz=ct.sizeof(TcHook), ifindex=ifindex, attach_point=point)
    opts = TcOpts(sz=ct.sizeof(TcOpts), handle=handle, priority=priority)
    if (result := lib().bpf_tc_detach(ct.byref(hook), ct.byref(opts))) not in _NO_FILTER:
        check("detach", result)
    _log.clear()


def query_clsact(ifindex: int, point: int, handle: int = CLSACT_HANDLE, priority: int = CLSACT_PRIORITY) -> int | None:
    """Returns the id of the program in mrcd's filter; None if there is no such filter."""
    hook = TcHook(sz=ct.sizeof(TcHook), ifindex=ifindex, attach_point=point)
    opts = TcOpts(sz=ct.sizeof(TcOpts), handle=handle, priority=priority)
    if (result := lib().bpf_tc_query(ct.byref(hook), ct.byref(opts))) not in _NO_FILTER:
        check("query a filter", result)
    _log.clear()
    return None if result else int(opts.prog_id)


# ---- elements ----

_KEYS_PER_CALL = 4096


def update_elem(fd: int, key: bytes, value: bytes) -> None:
    """Writes an element."""
    check("write a map element", lib().bpf_map_update_elem(fd, key, value, ct.c_uint64(0)))


def lookup_elem(fd: int, key: bytes, size: int) -> bytes | None:
    """Returns an element; None if it does not exist. `size` in bytes: of per-CPU maps, 8-byte aligned value × CPUs."""
    value = ct.create_string_buffer(size)
    result = lib().bpf_map_lookup_elem(fd, key, value)
    if result == -errno.ENOENT:
        return None
    check("read a map element", result)
    return value.raw


def lookup_all(fd: int, entries: int, value_size: int) -> bytes:
    """Returns all values of an array map in the order of its keys, with one call; `value_size` as in lookup_elem."""
    keys_out = (ct.c_uint32 * entries)()
    values = ct.create_string_buffer(entries * value_size)
    count, position = ct.c_uint32(entries), ct.c_uint32()
    result = lib().bpf_map_lookup_batch(fd, None, ct.byref(position), keys_out, values, ct.byref(count), None)
    if result != -errno.ENOENT:  # ENOENT marks the end of the map
        check("read a map", result)
    if count.value != entries:
        raise KernelError("read a map", errno.ENODATA)
    return values.raw


def delete_elem(fd: int, key: bytes) -> None:
    """Deletes an element; no error if it does not exist."""
    result = lib().bpf_map_delete_elem(fd, key)
    if result != -errno.ENOENT:
        check("delete a map element", result)


def keys(fd: int, size: int) -> Iterator[bytes]:
    """Yields the keys of a map, which must not change meanwhile."""
    last: bytes | None = None
    buffer = ct.create_string_buffer(size)
    while lib().bpf_map_get_next_key(fd, last, buffer) == 0:
        last = buffer.raw
        yield last
    _log.clear()


def count_keys(fd: int, size: int, value_size: int) -> int:
    """Returns the number of keys of a map that is not an array; approximate if the map changes meanwhile.

    Each call reads some thousands of keys.
    """
    keys_out, values = (
        ct.create_string_buffer(_KEYS_PER_CALL * size),
        ct.create_string_buffer(_KEYS_PER_CALL * value_size),
    )
    position, last, found, result = ct.create_string_buffer(size), None, 0, 0
    while result == 0:
        count = ct.c_uint32(_KEYS_PER_CALL)
        result = lib().bpf_map_lookup_batch(fd, last, position, keys_out, values, ct.byref(count), None)
        if result != -errno.ENOENT:  # ENOENT marks the end of the map
            check("count a map's keys", result)
        found, last = found + count.value, position
    return found


def possible_cpus() -> int:
    """Returns the number of possible CPUs: the values of each key of a per-CPU map."""
    return check("count the CPUs", lib().libbpf_num_possible_cpus())


def run_program(prog_fd: int, data: bytes, *, ctx: bytes | None = None, room: int = 0) -> tuple[int, bytes]:
    """Runs a program once on the packet `data` in this network namespace (BPF_PROG_TEST_RUN).

    `ctx` is the beginning of a struct __sk_buff or xdp_md; `room` is the largest size of the resulting packet. Returns
    the program's verdict and that packet.
    """
    out = ct.create_string_buffer(room) if room else None
    opts = TestRunOpts(sz=ct.sizeof(TestRunOpts))
    opts.data_in = ct.cast(ct.c_char_p(data), ct.c_void_p)
    opts.data_size_in = len(data)
    if out is not None:
        opts.data_out, opts.data_size_out = ct.addressof(out), room
    if ctx is not None:
        opts.ctx_in, opts.ctx_size_in = ct.cast(ct.c_char_p(ctx), ct.c_void_p), len(ctx)
    check("run a program", lib().bpf_prog_test_run_opts(prog_fd, ct.byref(opts)))
    return opts.retval, out.raw[: opts.data_size_out] if out is not None else b""


# ---- the ring buffer ----


class Ring:
    """The only consumer of a ring buffer map. It never blocks; `fileno()` is readable if there are records."""

    def __init__(self, map_fd: int) -> None:
        self._records: list[bytes] = []
        self._callback = _SAMPLE(self._take)  # kept here, because libbpf stores its address only
        self._ring = check("open the ring buffer", lib().ring_buffer__new(map_fd, self._callback, None, None))

    def _take(self, _context: int | None, data: int, size: int) -> int:
        self._records.append(ct.string_at(data, size))
        return 0

    def fileno(self) -> int:
        """Returns an epoll descriptor."""
        return check("ring buffer", lib().ring_buffer__epoll_fd(ct.c_void_p(self._ring)))

    def records(self) -> list[bytes]:
        """Returns the records that were written since the last call, in order."""
        check("read the ring buffer", lib().ring_buffer__consume(ct.c_void_p(self._ring)))
        found, self._records = self._records, []
        return found

    def close(self) -> None:
        """Frees the consumer; unread records stay for the next one."""
        if self._ring:
            lib().ring_buffer__free(ct.c_void_p(self._ring))
            self._ring = 0
