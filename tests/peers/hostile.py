#!/usr/bin/python3
"""A machine that does to its switch whatever a tenant can: random and forged frames, storms of flows, queue pairs, fragments,
broadcasts, DHCP, neighbour and router discovery, tunnels, and frames that are cut short or changed anywhere.

    hostile.py attack INTERFACE SECONDS SEED      sends for so long; the last line is JSON: sent, refused, kinds
    hostile.py watch INTERFACE UNTIL [MAC]        looks for frames of it until the file UNTIL exists; the last line is JSON:
                                                  frames, hostile (with its mark inside, or from MAC)
    hostile.py watch INTERFACE UNTIL MAC VNI      the same in the underlay: those in VxLAN of that network are no offence

Everything that has room for it carries MARK. The same seed gives the same frames.
"""
import json
import os
import random
import select
import socket
import sys
import time

MARK = b"HOSTILE-HOSTILE-"
OWN, VICTIM, FAR = "02:00:00:00:0e:01", "02:00:00:00:0a:01", "02:00:00:00:0a:02"
OWN_IP, VICTIM_IP, FAR_IP = "10.0.0.66", "10.0.0.1", "10.0.0.2"
OWN_IP6, VICTIM_IP6, FAR_IP6 = "fd00:1::66", "fd00:1::1", "fd00:1::2"
# What the switch knows of a station of this MAC address (RFC 4291 appendix A).
OWN_LINK_LOCAL = "fe80::ff:fe00:e01"
BROADCAST = "ff:ff:ff:ff:ff:ff"
SET = 3000
# Source ports that the victim's flows may have: few, so that it guesses right.
GUESSES = range(40000, 40032)


def frames(seed):
    from scapy.all import ARP, BOOTP, DHCP, ICMP, IP, TCP, UDP, Dot1Q, Ether, IPv6, IPv6ExtHdrFragment, Raw
    from scapy.layers.inet6 import (ICMPv6DestUnreach, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_RA,
                                    ICMPv6ND_Redirect, ICMPv6ND_RS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptSrcLLAddr)
    from scapy.layers.vxlan import VXLAN

    rng = random.Random(seed)
    raw = Raw(MARK * 2)

    def port():
        return rng.randrange(1, 65536)

    def address():
        return rng.choice([VICTIM_IP, FAR_IP, f"10.0.0.{rng.randrange(256)}", f"10.{rng.randrange(256)}.{rng.randrange(256)}.9"])

    def address6():
        return rng.choice([VICTIM_IP6, FAR_IP6, f"fd00:1::{rng.randrange(65536):x}", f"fd00:{rng.randrange(65536):x}::1"])

    def station():
        return rng.choice([VICTIM, FAR, BROADCAST, "33:33:00:00:00:01", "02:00:5e:00:00:64"])

    def ether(to=None):
        return Ether(src=OWN, dst=to or rng.choice([VICTIM, FAR]))

    def ip(to=None):
        return IP(src=OWN_IP, dst=to or address(), ttl=rng.choice([0, 1, 64, 255]))

    def ip6(to=None):
        return IPv6(src=OWN_IP6, dst=to or address6(), hlim=rng.choice([0, 1, 64, 255]))

    def noise():
        return rng.randbytes(12) + MARK + rng.randbytes(rng.randrange(1400))

    def own_noise():
        kind = rng.choice([0x0800, 0x86DD, 0x0806, 0x8100, 0x88A8, 0x8915, rng.randrange(65536)])
        return bytes(Ether(src=OWN, dst=station(), type=kind)) + rng.randbytes(rng.randrange(60)) + MARK

    def forged():
        source = rng.choice([VICTIM, FAR, BROADCAST, "00:00:00:00:00:00", "02:00:00:00:0b:01"])
        return Ether(src=source, dst=station()) / IP(src=rng.choice([VICTIM_IP, FAR_IP, OWN_IP]), dst=address()) / UDP(dport=port()) / raw

    def forged_address():
        source = rng.choice([VICTIM_IP, FAR_IP, "127.0.0.1", "224.0.0.1", "0.0.0.0", "255.255.255.255", "169.254.0.1"])
        return ether() / IP(src=source, dst=address()) / UDP(sport=port(), dport=port()) / raw

    def claims():
        return rng.choice([
            ether(BROADCAST) / ARP(op=rng.choice([1, 2]), hwsrc=OWN, psrc=VICTIM_IP, pdst=rng.choice([FAR_IP, VICTIM_IP])),
            ether() / ARP(op=2, hwsrc=rng.choice([OWN, VICTIM]), psrc=FAR_IP, hwdst=VICTIM, pdst=VICTIM_IP),
            ether("33:33:00:00:00:01") / IPv6(src=VICTIM_IP6, dst="ff02::1", hlim=255) / ICMPv6ND_NA(tgt=FAR_IP6, O=1) / ICMPv6NDOptDstLLAddr(lladdr=OWN),
            ether("33:33:ff:00:00:01") / ip6("ff02::1:ff00:1") / ICMPv6ND_NS(tgt=address6()) / ICMPv6NDOptSrcLLAddr(lladdr=OWN),
        ])

    def flows():
        return rng.choice([ether() / ip() / UDP(sport=port(), dport=port()) / raw, ether() / ip6() / UDP(sport=port(), dport=port()) / raw])

    def connections():
        flags = rng.choice(["S", "S", "S", "SA", "R", "F", "A", "SFRPAU", ""])
        return rng.choice([ether() / ip(VICTIM_IP), ether() / ip6(VICTIM_IP6), ether() / ip()]) / TCP(sport=port(), dport=port(), flags=flags, seq=rng.getrandbits(32)) / raw

    def queue_pairs():
        # Mostly what reliable connections send: a SEND, a write, a read.
        bth = bytes([rng.choice([0x04, 0x0A, 0x0C, rng.randrange(256)]), rng.randrange(256), 0xFF, 0xFF, 0]) + rng.randbytes(3) + rng.randbytes(4)
        return rng.choice([ether() / ip(), ether() / ip6()]) / UDP(sport=port(), dport=4791) / Raw(bth + MARK * rng.randrange(1, 8) + rng.randbytes(4))

    def fragments():
        if rng.random() < 0.5:
            return ether() / IP(src=OWN_IP, dst=address(), id=rng.randrange(65536), flags=rng.choice(["MF", 0]), frag=rng.randrange(8192), proto=17) / raw
        return ether() / ip6() / IPv6ExtHdrFragment(offset=rng.randrange(8192), m=rng.randrange(2), id=rng.getrandbits(32), nh=17) / raw

    def broadcasts():
        return rng.choice([
            ether(BROADCAST) / ip("255.255.255.255") / UDP(sport=port(), dport=port()) / raw,
            ether(BROADCAST) / ip("10.0.0.255") / ICMP() / raw,
            ether("01:00:5e:00:00:fb") / ip("224.0.0.251") / UDP(dport=5353) / raw,
            ether("33:33:00:00:00:01") / ip6("ff02::1") / ICMPv6EchoRequest(data=MARK),
        ])

    def services():
        client = rng.choice([OWN, VICTIM, "02:00:00:00:0b:01"])
        return rng.choice([
            ether(BROADCAST) / IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67) / BOOTP(chaddr=bytes.fromhex(client.replace(":", "")), xid=rng.getrandbits(32)) / DHCP(options=[("message-type", rng.choice(["discover", "request", "release", "decline"])), "end"]),
            ether(BROADCAST) / ip("255.255.255.255") / UDP(sport=67, dport=68) / BOOTP(op=2, yiaddr="10.0.0.200") / DHCP(options=[("message-type", "offer"), ("router", OWN_IP), "end"]),
            ether("33:33:00:00:00:01") / IPv6(src=OWN_LINK_LOCAL, dst="ff02::1", hlim=255) / ICMPv6ND_RA(),
            ether("33:33:00:00:00:02") / ip6("ff02::2") / ICMPv6ND_RS(),
            ether() / IPv6(src=OWN_LINK_LOCAL, dst=VICTIM_IP6, hlim=255) / ICMPv6ND_Redirect(tgt=OWN_IP6, dst=FAR_IP6),
        ])

    def tunnels():
        inside = Ether(src=FAR, dst="02:00:00:00:0b:01") / IP(src="10.0.0.2", dst="10.0.0.1") / UDP(dport=7788) / raw
        return ether() / ip(rng.choice(["172.16.0.1", "172.16.0.2", FAR_IP])) / UDP(sport=port(), dport=4789) / VXLAN(vni=rng.choice([100, 200]), flags=8) / inside

    def tagged():
        return Ether(src=OWN, dst=station()) / Dot1Q(vlan=rng.randrange(4096)) / ip() / UDP(dport=port()) / raw

    def errors():
        guess = UDP(sport=rng.choice(GUESSES), dport=7788)
        quoted = IP(src=VICTIM_IP, dst=FAR_IP) / guess / raw
        return rng.choice([
            ether() / ip(VICTIM_IP) / ICMP(type=3, code=rng.randrange(16)) / quoted,
            ether() / ip(VICTIM_IP) / ICMP(type=rng.choice([5, 11, 12])) / quoted,
            ether() / ip6(VICTIM_IP6) / ICMPv6DestUnreach() / IPv6(src=VICTIM_IP6, dst=FAR_IP6) / guess / raw,
        ])

    makers = [own_noise, noise, forged, forged_address, claims, flows, connections, queue_pairs, fragments, broadcasts, services, tunnels, tagged, errors]
    made = []
    for number in range(SET):
        frame = bytearray(bytes(makers[number % len(makers)]()))
        if rng.random() < 0.2:
            # Changed anywhere behind the source address, so that it gets past the guard more often.
            for _ in range(rng.randrange(1, 4)):
                frame[rng.randrange(12, len(frame))] = rng.randrange(256)
        if rng.random() < 0.1:
            frame = frame[: rng.randrange(14, len(frame) + 1)]
        made.append(bytes(frame))
    rng.shuffle(made)
    return made, [maker.__name__ for maker in makers]


def attack(interface, seconds, seed):
    made, kinds = frames(seed)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind((interface, 0))
    rng = random.Random(seed)
    sent = refused = 0
    print("ready", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(200):
            frame = rng.choice(made)
            # Other ports, queue pairs and identifiers with each round: a storm of flows, not of one set of them.
            if len(frame) > 42 and rng.random() < 0.5:
                frame = frame[:34] + rng.randbytes(2) + frame[36:]
            try:
                sock.send(frame)
                sent += 1
            except OSError:
                refused += 1
    print(json.dumps({"sent": sent, "refused": refused, "kinds": kinds}), flush=True)


def inside(frame, vni):
    """What of a frame of the underlay is an offence, if it is hostile: all of it, but for what is in a tunnel of the network."""
    is_tunnel = frame[12:15] == b"\x08\x00\x45" and frame[23] == 17 and frame[36:38] == (4789).to_bytes(2, "big")
    if not is_tunnel:
        return frame
    return b"" if frame[46:49] == vni.to_bytes(3, "big") else frame[50:]


def watch(interface, until, mac, vni):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    sock.bind((interface, 0))
    own = bytes.fromhex(mac.replace(":", "")) if mac else None
    count, found = 0, []
    print("ready", flush=True)
    while not os.path.exists(until):
        if not select.select([sock], [], [], 0.1)[0]:
            continue
        for _ in range(64):
            try:
                frame, where = sock.recvfrom(65535, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if where[2] == socket.PACKET_OUTGOING:
                continue
            count += 1
            frame = frame if vni is None else inside(frame, vni)
            if MARK in frame or (own is not None and frame[6:12] == own):
                found.append(frame[:96].hex())
    print(json.dumps({"frames": count, "hostile": len(found), "first": found[:3]}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "attack":
        attack(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
    else:
        MAC = sys.argv[4] if len(sys.argv) > 4 else None
        watch(sys.argv[2], sys.argv[3], MAC, int(sys.argv[5]) if len(sys.argv) > 5 else None)
