-- SPDX-License-Identifier: BSD-2-Clause
-- Dissects mrcd's packets (wire version 3, bpf/mrc_wire.h) in Wireshark and tshark.
--
-- Copy it into Wireshark's plugin directory (Help > About > Folders), or run `tshark -X lua_script:mrc.lua`.
-- Preferences > Protocols > MRC, or `-o mrc.udp_port:N`, sets another UDP port than 4797.

local mrc = Proto("mrc", "Multipath Reliable Connection (mrcd)")

local VERSION, PROBE_VERSION = 3, 2
local HEADER, PROBE, BALLAST, COUNT = 32, 32, 64, 8 -- bytes
local DATA, REQUEST, REPLY = 1, 2, 3
local TYPES = { [DATA] = "data", [REQUEST] = "probe request", [REPLY] = "probe reply" }

local f = {
    version = ProtoField.uint8("mrc.version", "Version"),
    type = ProtoField.uint8("mrc.type", "Type", base.DEC, TYPES),
    flags = ProtoField.uint8("mrc.flags", "Flags", base.HEX),
    critical = ProtoField.bool("mrc.flags.critical", "Critical: sent on two paths", 8, nil, 0x1),
    diagnostic = ProtoField.bool("mrc.flags.diagnostic", "Diagnostic probe", 8, nil, 0x2),
    key_id = ProtoField.uint8("mrc.key_id", "Key id"),
    sender = ProtoField.uint16("mrc.sender", "Sender (host id)"),
    ev = ProtoField.uint16("mrc.ev", "EV"),
    seq = ProtoField.uint32("mrc.seq", "Sequence number"),
    segments = ProtoField.uint16("mrc.segments", "Packets in this burst"),
    receiver = ProtoField.uint16("mrc.receiver", "Receiver (host id)"),
    tx_ns = ProtoField.uint64("mrc.tx_ns", "Sent at (ns, sender's clock)"),
    auth = ProtoField.bytes("mrc.auth", "Tag"),
    is_tagged = ProtoField.bool("mrc.tagged", "Tagged"),
    is_link_probe = ProtoField.bool("mrc.link_probe", "Link probe"),
    link_plane = ProtoField.uint16("mrc.link.plane", "Plane of the link"),
    link_row = ProtoField.uint16("mrc.link.row", "Row of the link (0: T0; 1 + n: T1 n)"),
    probe_seq = ProtoField.uint32("mrc.probe.seq", "Probe number on the EV"),
    plane_mask = ProtoField.uint16("mrc.probe.plane_mask", "Planes with a link", base.HEX),
    status = ProtoField.uint16("mrc.probe.status", "Status", base.HEX),
    detached = ProtoField.bool("mrc.probe.status.detached", "Detached", 16, nil, 0x1),
    plain = ProtoField.bool("mrc.probe.status.plain", "Sends plain SRv6", 16, nil, 0x2),
    tags_only = ProtoField.bool("mrc.probe.status.tags_only", "Takes tagged packets only", 16, nil, 0x4),
    generation = ProtoField.uint32("mrc.probe.generation", "Generation of the tables", base.HEX),
    report_seq = ProtoField.uint32("mrc.probe.report_seq", "Report sequence number"),
    first = ProtoField.uint16("mrc.probe.first", "First EV of the report"),
    counts = ProtoField.uint16("mrc.probe.counts", "EVs in the report"),
    key_ids = ProtoField.bytes("mrc.probe.key_ids", "Accepted key ids"),
    fingerprint = ProtoField.uint16("mrc.probe.fingerprint", "Fingerprint of the cluster file", base.HEX),
    probe_tx_ns = ProtoField.uint64("mrc.probe.tx_ns", "Requested at (ns, requester's clock)"),
    ballast = ProtoField.bytes("mrc.ballast", "Ballast"),
    count_ev = ProtoField.uint16("mrc.count.ev", "EV"),
    packets = ProtoField.uint32("mrc.count.packets", "Data packets arrived"),
    probes = ProtoField.uint16("mrc.count.probes", "Probe requests arrived"),
    ce = ProtoField.uint16("mrc.count.ce", "Data packets with a CE mark"),
}
mrc.fields = f
local wrong_version = ProtoExpert.new("mrc.wrong_version", "Another version of the wire format",
    expert.group.PROTOCOL, expert.severity.WARN)
local truncated = ProtoExpert.new("mrc.truncated", "Shorter than its headers say",
    expert.group.MALFORMED, expert.severity.ERROR)
mrc.experts = { wrong_version, truncated }
mrc.prefs.udp_port = Pref.uint("UDP port", 4797, "[cluster] udp_port of the cluster file")

local inner = { [4] = Dissector.get("ip"), [6] = Dissector.get("ipv6") }

-- Adds the counts of a reply. A request has room for them, which may hold bytes of a data packet.
local function dissect_report(buffer, tree, kind, first, counts)
    local at = BALLAST
    if buffer:len() < at + counts * COUNT then
        tree:add_proto_expert_info(truncated)
        return
    end
    tree:add(f.ballast, buffer(0, BALLAST))
    if kind ~= REPLY then return end
    for i = 0, counts - 1 do
        local count = buffer(at + i * COUNT, COUNT)
        local branch = tree:add(mrc, count, string.format("EV %d: %d packets, %d probes, %d CE", first + i,
            count(0, 4):uint(), count(4, 2):uint(), count(6, 2):uint()))
        branch:add(f.count_ev, count, first + i):set_generated()
        branch:add(f.packets, count(0, 4))
        branch:add(f.probes, count(4, 2))
        branch:add(f.ce, count(6, 2))
    end
end

local function dissect_probe(buffer, tree, kind)
    if buffer:len() < PROBE then
        tree:add_proto_expert_info(truncated)
        return ""
    end
    local branch = tree:add(mrc, buffer(0, PROBE), "Probe")
    branch:add(f.probe_seq, buffer(0, 4))
    branch:add(f.plane_mask, buffer(4, 2))
    local status = branch:add(f.status, buffer(6, 2))
    for _, bit in ipairs({ f.detached, f.plain, f.tags_only }) do status:add(bit, buffer(6, 2)) end
    branch:add(f.generation, buffer(8, 4))
    branch:add(f.report_seq, buffer(12, 4))
    branch:add(f.first, buffer(16, 2))
    branch:add(f.counts, buffer(18, 2))
    branch:add(f.key_ids, buffer(20, 2))
    branch:add(f.fingerprint, buffer(22, 2))
    branch:add(f.probe_tx_ns, buffer(24, 8))
    local first, counts = buffer(16, 2):uint(), buffer(18, 2):uint()
    if counts == 0 then return "" end
    if buffer:len() > PROBE then
        dissect_report(buffer(PROBE):tvb(), tree, kind, first, counts)
    else
        tree:add_proto_expert_info(truncated)
    end
    return string.format(" report of EVs %d to %d", first, first + counts - 1)
end

function mrc.dissector(buffer, pinfo, tree)
    if buffer:len() < HEADER then return 0 end
    pinfo.cols.protocol = "MRC"
    local branch = tree:add(mrc, buffer(0, HEADER))
    branch:add(f.version, buffer(0, 1))
    if buffer(0, 1):uint() ~= (buffer(1, 1):uint() == DATA and VERSION or PROBE_VERSION) then
        branch:add_proto_expert_info(wrong_version)
        pinfo.cols.info = string.format("MRC version %d", buffer(0, 1):uint())
        return buffer:len()
    end
    local kind, sender, receiver = buffer(1, 1):uint(), buffer(4, 2):uint(), buffer(14, 2):uint()
    local number = buffer(6, 2):uint()
    local is_link_probe = kind == REQUEST and sender == receiver
    branch:add(f.type, buffer(1, 1))
    local flags = branch:add(f.flags, buffer(2, 1))
    flags:add(f.critical, buffer(2, 1))
    flags:add(f.diagnostic, buffer(2, 1))
    branch:add(f.key_id, buffer(3, 1))
    branch:add(f.sender, buffer(4, 2))
    if is_link_probe then
        branch:add(f.is_link_probe, buffer(6, 2), true):set_generated()
        branch:add(f.link_plane, buffer(6, 2), number % 8)
        branch:add(f.link_row, buffer(6, 2), math.floor(number / 8))
    else
        branch:add(f.ev, buffer(6, 2))
    end
    branch:add(f.seq, buffer(8, 4))
    branch:add(f.segments, buffer(12, 2))
    branch:add(f.receiver, buffer(14, 2))
    branch:add(f.tx_ns, buffer(16, 8))
    branch:add(f.auth, buffer(24, 8))
    branch:add(f.is_tagged, buffer(24, 8), buffer(3, 1):uint() ~= 0 or is_link_probe):set_generated()

    local name = is_link_probe and "link probe" or TYPES[kind] or ("type " .. kind)
    local words = string.format("%s host %d > %d %s %d seq %d", name, sender, receiver,
        is_link_probe and "link" or "EV", number, buffer(8, 4):uint())
    if buffer(12, 2):uint() ~= 1 then words = words .. string.format(" x %d", buffer(12, 2):uint()) end
    if buffer:len() == HEADER then
        pinfo.cols.info = words
        return HEADER
    end
    local rest = buffer(HEADER):tvb()
    if kind == DATA then
        local dissector = inner[math.floor(rest(0, 1):uint() / 16)] or Dissector.get("data")
        dissector:call(rest, pinfo, tree)
        pinfo.cols.info:prepend(words .. " | ")
    elseif TYPES[kind] then
        pinfo.cols.info = words .. dissect_probe(rest, branch, kind)
    else
        pinfo.cols.info = words
        Dissector.get("data"):call(rest, pinfo, tree)
    end
    return buffer:len()
end

local ports, bound = DissectorTable.get("udp.port"), nil
local function bind()
    if bound then ports:remove(bound, mrc) end
    bound = mrc.prefs.udp_port
    ports:add(bound, mrc)
end
mrc.prefs_changed = bind
bind()
