#!/usr/bin/env python3
"""Makes frames.txt: frames composed by scapy, as an implementation that is not ours.

One line a frame: its name, then its bytes in hex. Checksums of IPv4, TCP, UDP, ICMP and ICMPv6 and the ICRC over
IPv4 are scapy's. scapy has no ICRC over IPv6: that one is zlib's CRC-32 over a copy of the packet with the
fields that routers change set to ones.

    python3 make.py > frames.txt      (needs scapy; written with 2.5)
"""
import logging
import struct
import zlib

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.contrib.roce import AETH, BTH, cnp
from scapy.all import (Dot1AD, Dot1Q, Ether, ICMP, ICMPv6EchoRequest, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IP,
                       IPOption, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, PadN, Raw, SCTP,
                       TCP, UDP, VXLAN)

A, B = "52:54:00:00:00:01", "52:54:00:00:00:02"
eth = lambda: Ether(src=A, dst=B)
ip4 = lambda **k: IP(src="10.0.0.1", dst="10.0.0.2", **k)
ip6 = lambda **k: IPv6(src="fd00::1", dst="fd00::2", **k)
reth = struct.pack(">QII", 0x7F0000001000, 0x1234, 5)


def roce6(bth, body):
    """A RoCEv2 packet over IPv6 with its ICRC."""
    head = bytes(bth)[:12]
    payload = head + body + b"\0\0\0\0"
    packet = bytearray(bytes(ip6(tc=0x6A, fl=0x12345, hlim=9) / UDP(sport=0xC321, dport=4791, chksum=0) / payload))
    masked = bytearray(packet[:-4])
    masked[0] |= 0x0F
    masked[1:4] = b"\xff\xff\xff"
    masked[7] = 0xFF
    masked[46:48] = b"\xff\xff"
    masked[52] = 0xFF
    icrc = struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(masked)))
    return eth() / ip6(tc=0x6A, fl=0x12345, hlim=9) / UDP(sport=0xC321, dport=4791) / Raw(head + body + icrc)


def udp_zero():
    """A datagram whose checksum computes to zero, which is sent as ones."""
    for guess in range(0x10000):
        frame = bytes(eth() / ip4() / UDP(sport=7, dport=9) / struct.pack(">H", guess))
        if frame[40:42] == b"\xff\xff":
            return frame
    raise SystemExit("no such datagram")


FRAMES = {
    "tcp4-options": eth() / ip4(id=1, flags="DF")
    / TCP(sport=1234, dport=80, flags="S", options=[("MSS", 1460), ("WScale", 7)]) / b"odd",
    "tcp4-ip-options": eth() / ip4(options=[IPOption(b"\x94\x04\x00\x00")]) / TCP(sport=1, dport=2) / b"x",
    "udp4": eth() / ip4(tos=3, ttl=1) / UDP(sport=53, dport=5353) / b"hello",
    "udp4-zero": udp_zero(),
    "icmp4": eth() / ip4() / ICMP(type=8, id=0x77, seq=5) / bytes(range(33)),
    "tcp4-vlan": eth() / Dot1Q(vlan=100, prio=5) / ip4() / TCP(sport=5, dport=6, flags="FA"),
    "udp4-qinq": eth() / Dot1AD(vlan=7) / Dot1Q(vlan=8) / ip4() / UDP(sport=5, dport=6) / b"123",
    "tcp6": eth() / ip6(tc=0xB9, fl=0xABCDE) / TCP(sport=1234, dport=80, flags="PA") / b"seven b",
    "udp6-extensions": eth() / ip6() / IPv6ExtHdrHopByHop(options=[PadN(optdata=b"\0" * 4)])
    / IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 12)]) / UDP(sport=1, dport=2) / b"abc",
    "icmp6": eth() / ip6() / ICMPv6EchoRequest(id=0x99, seq=3, data=b"ping!"),
    "neighbour-solicitation": Ether(src=A, dst="33:33:ff:00:00:02")
    / IPv6(src="fd00::1", dst="ff02::1:ff00:2", hlim=255) / ICMPv6ND_NS(tgt="fd00::2")
    / ICMPv6NDOptSrcLLAddr(lladdr=A),
    "sctp4": eth() / ip4() / SCTP(sport=36412, dport=36413, tag=1),
    "vxlan4": eth() / ip4() / UDP(sport=0xC000, dport=4789, chksum=0) / VXLAN(vni=0x123456, flags=8)
    / eth() / ip4() / UDP(sport=1, dport=2) / b"in",
    "vxlan6": eth() / ip6() / UDP(sport=0xC000, dport=4789) / VXLAN(vni=42, flags=8)
    / eth() / ip6() / TCP(sport=1, dport=2) / b"in",
    "fragment4-first": eth() / ip4(id=0x1234, flags="MF") / UDP(sport=1, dport=2, len=100) / (b"f" * 16),
    "fragment4-later": eth() / ip4(id=0x1234, frag=3, proto=17) / (b"g" * 13),
    "fragment6-later": eth() / ip6() / IPv6ExtHdrFragment(nh=17, offset=3, m=0, id=0xDEADBEEF) / (b"g" * 13),
    "roce4-write": eth() / ip4(tos=0x6A, id=0x1234, flags="DF") / UDP(sport=0xC123, dport=4791, chksum=0)
    / BTH(opcode=0x0A, padcount=3, pkey=0xFFFF, dqpn=0x11, ackreq=1, psn=0xABCD) / Raw(reth + b"hello\0\0\0"),
    "roce4-cnp": eth() / ip4(tos=0xC0, id=7, ttl=3) / UDP(sport=0xD000, dport=4791, chksum=0) / cnp(0xABCDEF),
    "roce4-ack-vlan": eth() / Dot1Q(vlan=5) / ip4(id=0xFFFF) / UDP(sport=49152, dport=4791)
    / BTH(opcode=0x11, dqpn=0xFFFFFE, psn=0xFFFFFF) / AETH(syndrome=0x1F, msn=0x010203),
    "roce4-options": eth() / ip4(options=[IPOption(b"\x94\x04\x00\x00")])
    / UDP(sport=0xC123, dport=4791, chksum=0) / BTH(opcode=4, dqpn=0x12, psn=1) / Raw(bytes(range(200))),
    "roce6-write": roce6(BTH(opcode=0x0A, padcount=3, pkey=0xFFFF, dqpn=0x11, ackreq=1, psn=0xABCD),
                         reth + b"hello\0\0\0"),
}

for name, frame in FRAMES.items():
    print(name, bytes(frame).hex())
