# t1-0-1, for Cumulus Linux 5.14 or newer on Spectrum-4.
nv set system hostname t1-0-1
nv set interface lo ip address fd10:0:0:8001::1/128
nv set router segment-routing srv6 state enabled
nv set router segment-routing srv6 locator MRC prefix 5f00:0:8001::/48
nv set router segment-routing srv6 locator MRC block-length 32
nv set router segment-routing srv6 locator MRC node-length 16
nv set router segment-routing srv6 locator MRC func-length 0
nv set router segment-routing static srv6-sid 5f00:0:8001::/48 locator-name MRC
nv set router segment-routing static srv6-sid 5f00:0:8001::/48 behavior uN
nv set interface swp1 link mtu 9100
nv set interface swp1 ip address fe80::1:1/64
nv set vrf default router static fd10::/64 via fe80::2 interface swp1
nv set vrf default router static fd10:0:0:4000::/64 via fe80::2 interface swp1
nv set vrf default router static 5f00:0:4000::/48 via fe80::2 interface swp1
nv set interface swp2 link mtu 9100
nv set interface swp2 ip address fe80::1:1/64
nv set vrf default router static fd10:0:0:1::/64 via fe80::2 interface swp2
nv set vrf default router static fd10:0:0:4001::/64 via fe80::2 interface swp2
nv set vrf default router static 5f00:0:4001::/48 via fe80::2 interface swp2
nv config apply
