# SPDX-License-Identifier: BSD-2-Clause
"""Defines the structures of libbpf and bpf(2) that mrcd passes and reads."""

import ctypes as ct


class MapInfo(ct.Structure):
    """The beginning of struct bpf_map_info."""

    _fields_ = [
        ("type", ct.c_uint32),
        ("id", ct.c_uint32),
        ("key_size", ct.c_uint32),
        ("value_size", ct.c_uint32),
        ("max_entries", ct.c_uint32),
        ("map_flags", ct.c_uint32),
        ("name", ct.c_char * 16),
        ("ifindex", ct.c_uint32),
        ("btf_vmlinux_value_type_id", ct.c_uint32),
        ("netns_dev", ct.c_uint64),
        ("netns_ino", ct.c_uint64),
        ("btf_id", ct.c_uint32),
        ("btf_key_type_id", ct.c_uint32),
        ("btf_value_type_id", ct.c_uint32),
    ]


class LinkCreateOpts(ct.Structure):
    """struct bpf_link_create_opts."""

    _fields_ = [("sz", ct.c_size_t), ("flags", ct.c_uint32), ("_rest", ct.c_byte * 52)]


class TcHook(ct.Structure):
    """struct bpf_tc_hook."""

    _fields_ = [("sz", ct.c_size_t), ("ifindex", ct.c_int), ("attach_point", ct.c_int), ("parent", ct.c_uint32)]


class TcOpts(ct.Structure):
    """struct bpf_tc_opts."""

    _fields_ = [
        ("sz", ct.c_size_t),
        ("prog_fd", ct.c_int),
        ("flags", ct.c_uint32),
        ("prog_id", ct.c_uint32),
        ("handle", ct.c_uint32),
        ("priority", ct.c_uint32),
    ]


class TestRunOpts(ct.Structure):
    """struct bpf_test_run_opts."""

    _fields_ = [
        ("sz", ct.c_size_t),
        ("data_in", ct.c_void_p),
        ("data_out", ct.c_void_p),
        ("data_size_in", ct.c_uint32),
        ("data_size_out", ct.c_uint32),
        ("ctx_in", ct.c_void_p),
        ("ctx_out", ct.c_void_p),
        ("ctx_size_in", ct.c_uint32),
        ("ctx_size_out", ct.c_uint32),
        ("retval", ct.c_uint32),
        ("repeat", ct.c_int),
        ("duration", ct.c_uint32),
        ("flags", ct.c_uint32),
        ("cpu", ct.c_uint32),
        ("batch_size", ct.c_uint32),
    ]


class ProgramHead(ct.Structure):
    """The beginning of struct bpf_prog_info."""

    _fields_ = [("type", ct.c_uint32), ("id", ct.c_uint32)]


class LinkInfo(ct.Structure):
    """struct bpf_link_info of XDP and TCX links, with room for later fields."""

    _fields_ = [
        *((name, ct.c_uint32) for name in ("type", "id", "prog_id", "_pad", "ifindex", "attach_type")),
        ("_rest", ct.c_byte * 40),
    ]
