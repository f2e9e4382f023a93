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


class ProgramInfo(ct.Structure):
    """struct bpf_prog_info."""

    _fields_ = [
        ("type", ct.c_uint32),
        ("id", ct.c_uint32),
        ("tag", ct.c_uint8 * 8),
        ("jited_prog_len", ct.c_uint32),
        ("xlated_prog_len", ct.c_uint32),
        ("_insns", ct.c_uint64 * 2),
        ("load_time", ct.c_uint64),
        ("created_by_uid", ct.c_uint32),
        ("nr_map_ids", ct.c_uint32),
        ("map_ids", ct.c_uint64),
        ("name", ct.c_char * 16),
        ("_device", ct.c_uint32 * 2),
        ("_netns", ct.c_uint64 * 2),
        ("_ksyms", ct.c_uint32 * 2),
        ("_pointers", ct.c_uint64 * 2),
        ("_btf", ct.c_uint32 * 2),
        ("_func_info", ct.c_uint64),
        ("_nr_info", ct.c_uint32 * 2),
        ("_line_info", ct.c_uint64 * 2),
        ("_nr_lines", ct.c_uint32 * 4),
        ("_tags", ct.c_uint64),
        ("run_time_ns", ct.c_uint64),
        ("run_cnt", ct.c_uint64),
        ("recursion_misses", ct.c_uint64),
        ("verified_insns", ct.c_uint32),
        ("_rest", ct.c_uint32 * 3),
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
