# t0-0-0, for Cumulus Linux 5.14 or newer on Spectrum-4.
nv set system hostname t0-0-0
nv set interface lo ip address fd10:0:0:4000::1/128
nv set router segment-routing srv6 state enabled
nv set router segment-routing srv6 locator MRC prefix 5f00:0:4000::/48
nv set router segment-routing srv6 locator MRC block-length 32
nv set router segment-routing srv6 locator MRC node-length 16
nv set router segment-routing srv6 locator MRC func-length 0
nv set router segment-routing static srv6-sid 5f00:0:4000::/48 locator-name MRC
nv set router segment-routing static srv6-sid 5f00:0:4000::/48 behavior uN
nv set interface swp4 link mtu 9100
nv set interface swp4 ip address fe80::1/64
nv set vrf default router static fd10::1/128 via fe80::2 interface swp4
nv set vrf default router static 5f00:0:c003::/48 via fe80::2 interface swp4
nv set acl MRC-swp4 type ipv6
nv set acl MRC-swp4 rule 10 match ip source-ip fd10::1/128
nv set acl MRC-swp4 rule 10 action permit
nv set acl MRC-swp4 rule 20 match ip source-ip fe80::/10
nv set acl MRC-swp4 rule 20 action permit
nv set acl MRC-swp4 rule 30 match ip source-ip ANY
nv set acl MRC-swp4 rule 30 action deny
nv set interface swp4 acl MRC-swp4 inbound
nv set interface swp5 link mtu 9100
nv set interface swp5 ip address fe80::2/64
nv set vrf default router static fd10:0:0:8000::/64 via fe80::1:0 interface swp5
nv set vrf default router static 5f00:0:8000::/48 via fe80::1:0 interface swp5
nv set interface swp6 link mtu 9100
nv set interface swp6 ip address fe80::2/64
nv set vrf default router static fd10:0:0:8001::/64 via fe80::1:1 interface swp6
nv set vrf default router static 5f00:0:8001::/48 via fe80::1:1 interface swp6
nv set vrf default router static fd10::/48 via fe80::1:0 interface swp5
nv set vrf default router static fd10::/48 via fe80::1:1 interface swp6
nv set vrf default router static fd10::/64 via blackhole type blackhole
nv config apply
