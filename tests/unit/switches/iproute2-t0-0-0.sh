#!/bin/sh -e
# t0-0-0, for a Linux switch (kernel 6.1 or newer) without hardware: rules are not offloaded.
sysctl -qw net.ipv6.conf.all.forwarding=1
sysctl -qw net.ipv6.fib_multipath_hash_policy=3
sysctl -qw net.ipv6.fib_multipath_hash_fields=63
ip link show dev srv6 >/dev/null 2>&1 || ip link add name srv6 mtu 9100 type dummy
ip link set dev a mtu 9100
ip link set dev t1-0 mtu 9100
ip link set dev t1-1 mtu 9100
ip -6 link set dev lo up
ip -6 address replace fd10:0:0:4000::1/128 dev lo nodad
ip -6 link set dev a up
ip -6 address replace fe80::1/64 dev a nodad
ip -6 route replace fd10::1/128 via fe80::2 dev a
ip -6 route replace 5f00:0:c003::/48 via fe80::2 dev a
ip -6 link set dev t1-0 up
ip -6 address replace fe80::2/64 dev t1-0 nodad
ip -6 route replace fd10:0:0:8000::/64 via fe80::1:0 dev t1-0
ip -6 route replace 5f00:0:8000::/48 via fe80::1:0 dev t1-0
ip -6 link set dev t1-1 up
ip -6 address replace fe80::2/64 dev t1-1 nodad
ip -6 route replace fd10:0:0:8001::/64 via fe80::1:1 dev t1-1
ip -6 route replace 5f00:0:8001::/48 via fe80::1:1 dev t1-1
ip -6 link set dev srv6 up
ip -6 route replace 5f00:0:4000::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev srv6
ip -6 route replace fd10::/48 nexthop via fe80::1:0 dev t1-0 nexthop via fe80::1:1 dev t1-1
ip -6 route replace unreachable fd10::/64
ip -6 rule flush protocol 109
ip -6 rule add pref 100 protocol 109 iif a from fd10::1 lookup main
ip -6 rule add pref 150 protocol 109 iif a from fd10::1 unreachable
ip -6 rule add pref 200 protocol 109 iif a blackhole
