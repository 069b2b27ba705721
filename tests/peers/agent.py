#!/usr/bin/python3
"""Sends crafted frames and tells what arrived elsewhere, one JSON request a line on stdin, one JSON answer a line on stdout.

    {"wires": {"red1": ["namespace", "eth0"], ...}, "names": {"up_mac": "...", ...}}
    {"from": "peer", "frames": ["Ether(...)/IP(...)", ...], "watch": ["red1", ...], "quiet": 0.3}

Frames are Python expressions over scapy, the given names and the helpers below. Every frame that arrives on a watched wire
during the exchange is answered as its facts (see `facts`); ARP and neighbour discovery are left out unless asked for.
"""
import json
import os
import struct
import sys

from scapy.all import (  # noqa: F401  (the expressions use them)
    ARP, ICMP, IP, TCP, UDP, Dot1Q, Ether, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA, ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr, ICMPv6NDOptPrefixInfo, ICMPv6NDOptSrcLLAddr, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, Raw, conf,
    fragment, fragment6,
)
from roce import icrc
from wires import Wire

conf.verb = 0
names = {}
wires = {}


def vxlan(vni, inner, flags=0x08, reserved1=0, reserved2=0):
    """A VxLAN header and what is inside, as bytes."""
    return struct.pack("!II", flags << 24 | reserved1, vni << 8 | reserved2) + bytes(inner)


def outer(payload, src=None, dst=None, tos=0, sport=51000, dport=4789, udp=None, ether=None, **ip):
    """The underlay headers around a VxLAN packet, from the other VTEP to the switch's unless told otherwise."""
    src, dst = src or names["remote_vtep"], dst or names["local_vtep"]
    network = IPv6(src=src, dst=dst, tc=tos, **ip) if ":" in src else IP(src=src, dst=dst, tos=tos, **ip)
    link = Ether(**dict({"src": names["peer_mac"], "dst": names["up_mac"]}, **(ether or {})))
    # Over IPv4 the outer checksum is zero as usual; over IPv6 scapy computes it.
    udp = dict({} if ":" in src else {"chksum": 0}, **(udp or {}))
    return link / network / UDP(sport=sport, dport=dport, **udp) / Raw(payload)


def from_far(transport, family=4, ether=None, tag=None, **ip):
    """A frame of the remote machine to the tenant, as it is inside the tunnel."""
    return _frame("far", "red", transport, family, ether, tag, ip)


def from_red(transport, family=4, ether=None, tag=None, **ip):
    """A frame of the tenant to the remote machine."""
    return _frame("red", "far", transport, family, ether, tag, ip)


def _frame(source, target, transport, family, ether, tag, ip):
    link = Ether(**dict({"src": names[source + "_mac"], "dst": names[target + "_mac"]}, **(ether or {})))
    if tag is not None:
        link = link / Dot1Q(vlan=tag)
    if family == 6:
        return link / IPv6(**dict({"src": names[source + "_ip6"], "dst": names[target + "_ip6"]}, **ip)) / transport
    return link / IP(**dict({"src": names[source + "_ip"], "dst": names[target + "_ip"]}, **ip)) / transport


def datagram(text="hello", sport=1000, dport=2000):
    return UDP(sport=sport, dport=dport) / Raw(text.encode())


def to_red(transport=None, vni=100, flags=0x08, reserved1=0, reserved2=0, inner=None, tag=None, family=4, **outside):
    """A frame of the remote machine to the tenant inside its tunnel; further arguments are those of `outer`."""
    return outer(vxlan(vni, from_far(transport or datagram(), family, tag=tag, **(inner or {})), flags, reserved1, reserved2), **outside)


def roce(source, target, payload, sport=49152, family=4, tag=None, **ip):
    """A RoCEv2 frame between two stations of the names, its ICRC computed; as bytes."""
    frame = _frame(source, target, UDP(sport=sport, dport=4791, chksum=0) / Raw(payload + bytes(4)), family, None, tag, ip)
    frame, l3, header = bytearray(bytes(frame)), 14 if tag is None else 18, 20 if family == 4 else 40
    frame[-4:] = icrc(family, frame[l3:-4], header).to_bytes(4, "little")
    return bytes(frame)


def rc(source, target, qpn, opcode=0x04, psn=0, body=bytes(16), **more):
    """A packet of a reliable connection to a queue pair of the target; further arguments are those of `roce`."""
    return roce(source, target, struct.pack("!BBHII", opcode, 0, 0xFFFF, qpn, psn) + body, **more)


def ack(source, target, qpn, psn=0, syndrome=0, **more):
    """An acknowledgement, or with another syndrome a NAK."""
    return rc(source, target, qpn, 0x11, psn, struct.pack("!I", syndrome << 24), **more)


def cm(source, target, attribute, body, **more):
    """A message of the connection manager; `body` is what is not zero of it, by offset."""
    fields = bytearray(232)
    for at, value in body.items():
        fields[at : at + len(value)] = value
    mad = struct.pack("!BBBBHHQHHI", 1, 7, 2, 3, 0, 0, 77, attribute, 0, 0) + fields
    return roce(source, target, struct.pack("!BBHIIII", 0x64, 0, 0xFFFF, 1, 0, 0x80010000, 1) + mad, **more)


def _ids(local, remote):
    return {0: struct.pack("!II", local, remote)}


def req(source, target, local, qpn):
    return cm(source, target, 0x10, {**_ids(local, 0), 32: qpn.to_bytes(3, "big")})


def rep(source, target, local, remote, qpn):
    return cm(source, target, 0x13, {**_ids(local, remote), 12: qpn.to_bytes(3, "big")})


def dreq(source, target, local, remote, qpn):
    return cm(source, target, 0x15, {**_ids(local, remote), 8: qpn.to_bytes(3, "big")})


def drep(source, target, local, remote):
    return cm(source, target, 0x16, _ids(local, remote))


def tunnel(frame, vni=100):
    """A frame inside the tunnel to the switch."""
    return outer(vxlan(vni, frame))


def cuts(frame, start=14, end=None):
    """A frame cut short at every byte from `start` on, its length fields left as they were."""
    data = bytes(frame)
    return [data[:n] for n in range(start, len(data) if end is None else end)]


def inner_cuts(vni, inner):
    """VxLAN packets whose outer headers are right and whose inside is cut short at every byte, down to nothing."""
    data = bytes(inner)
    return [outer(vxlan(vni, data[:n])) for n in range(len(data))]


def header_cuts():
    """UDP packets to the VxLAN port that end inside the VxLAN header."""
    data = vxlan(100, b"")
    return [outer(data[:n]) for n in range(len(data))]


def in_ether(link, packets):
    """Each packet in its own Ethernet frame."""
    return [link / packet for packet in packets]


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def facts(data, depth=0):
    """What a frame says, computed without scapy's help so that its defaults repair nothing."""
    fact = {"len": len(data), "dst": data[0:6].hex(":"), "src": data[6:12].hex(":")}
    at, kind = 14, int.from_bytes(data[12:14], "big")
    vlans = []
    while kind in (0x8100, 0x88A8) and len(data) >= at + 4:
        vlans.append(int.from_bytes(data[at : at + 2], "big") & 0xFFF)
        kind = int.from_bytes(data[at + 2 : at + 4], "big")
        at += 4
    fact["type"], fact["vlans"] = kind, vlans
    network = data[at:]
    if kind == 0x0800 and len(network) >= 20:
        header = (network[0] & 15) * 4
        total, ident, fragment_field = struct.unpack("!HHH", network[2:8])
        more, offset = bool(fragment_field & 0x2000), (fragment_field & 0x1FFF) * 8
        fact.update(
            ip_src=".".join(map(str, network[12:16])), ip_dst=".".join(map(str, network[16:20])), tos=network[1], ttl=network[8], id=ident,
            df=bool(fragment_field & 0x4000), more=more, offset=offset, proto=network[9], ip_sum_ok=checksum(network[:header]) == 0xFFFF,
            ip_len=total,
        )
        transport, proto = network[header:total], network[9]
        pseudo = network[12:20] + struct.pack("!BBH", 0, proto, len(transport))
    elif kind == 0x86DD and len(network) >= 40:
        import socket

        first, length, proto, hops = struct.unpack("!IHBB", network[:8])
        fact.update(
            ip_src=socket.inet_ntop(socket.AF_INET6, network[8:24]), ip_dst=socket.inet_ntop(socket.AF_INET6, network[24:40]),
            tos=first >> 20 & 0xFF, flow_label=first & 0xFFFFF, ttl=hops, proto=proto, more=False, offset=0, ip_len=length + 40,
        )
        transport = network[40 : 40 + length]
        if proto == 44 and len(transport) >= 8:
            proto, field = transport[0], int.from_bytes(transport[2:4], "big")
            fact.update(proto=proto, more=bool(field & 1), offset=field & 0xFFF8)
            transport = transport[8:]
        pseudo = network[8:40] + struct.pack("!IHBB", len(transport), 0, 0, proto)
    else:
        fact["payload"] = network.hex()
        return fact
    if fact["offset"] == 0 and proto in (6, 17) and len(transport) >= 8:
        sport, dport = struct.unpack("!HH", transport[:4])
        fact.update(sport=sport, dport=dport)
        sum_field = transport[6:8] if proto == 17 else transport[16:18]
        fact["l4_sum"] = int.from_bytes(sum_field, "big")
        if not fact["more"]:
            fact["l4_sum_ok"] = checksum(pseudo + transport) == 0xFFFF
        if proto == 17:
            fact["payload"] = transport[8:].hex()
            if dport == 4789 and depth == 0 and len(transport) >= 16:
                fact["vxlan_flags"], fact["vni"] = transport[8], int.from_bytes(transport[12:15], "big")
                fact["vxlan_reserved"] = int.from_bytes(transport[9:12], "big") | transport[15]
                fact["inner"] = facts(transport[16:], 1)
    else:
        fact["payload"] = transport.hex()
        if fact["proto"] in (1, 58) and fact["offset"] == 0 and not fact["more"]:
            fact["l4_sum_ok"] = checksum((pseudo if fact["proto"] == 58 else b"") + transport) == 0xFFFF
    return fact


def is_discovery(fact):
    """ARP, and ICMPv6 types 130 to 143 (listener and neighbour discovery), here or inside a tunnel."""
    if "inner" in fact:
        return is_discovery(fact["inner"])
    return fact["type"] == 0x0806 or (fact.get("proto") in (0, 58) and (fact.get("proto") == 0 or fact["payload"][:2] in {f"{t:02x}" for t in range(130, 144)}))


def exchange(request):
    watched = {name: wires[name] for name in request["watch"]}
    for wire in watched.values():
        wire.drain()
    sent = 0
    for text in request["frames"]:
        frames = eval(text, {**globals(), **names})
        for frame in frames if isinstance(frames, list) else [frames]:
            wires[request["from"]].send(frame)
            sent += 1
    # How long a silence means that nothing more comes: longer on a machine that has more to do than it can.
    busy = max(1.0, min(5.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    answer = {"sent": sent, "seen": {}}
    for name, wire in watched.items():
        seen = [facts(frame) for frame in wire.receive(quiet=request.get("quiet", 0.3) * busy)]
        answer["seen"][name] = [fact for fact in seen if request.get("discovery") or not is_discovery(fact)]
    return answer


for line in sys.stdin:
    request = json.loads(line)
    if "wires" in request:
        wires.update({name: Wire(*place) for name, place in request["wires"].items()})
        names.update(request["names"])
        answer = {"ready": True}
    else:
        answer = exchange(request)
    print(json.dumps(answer), flush=True)
