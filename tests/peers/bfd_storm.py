#!/usr/bin/python3
"""Forged BFD packets out of an interface, at a rate: of somebody on the link who is not the peer, or not on the link at all.

    bfd_storm.py INTERFACE TO_MAC OWN PEER RATE SECONDS DISCRIMINATOR

OWN is the address of the switch, PEER that of its real peer, DISCRIMINATOR the one by which the switch knows its session: the
worst case, somebody who has seen it. Every RATE-th of a second one of the kinds below goes out, in turn. Ends with the JSON
of {kind: packets}.
"""
import json
import socket
import struct
import sys
import time

from scapy.all import IP, UDP, Ether, IPv6, Raw

ADMIN_DOWN, DOWN, INIT, UP = range(4)


def control(state, yours, version=1, multiplier=3, length=24, mine=0xBAD, flags=0):
    head = struct.pack("!BBBB", version << 5, state << 6 | flags, multiplier, length)
    return head + struct.pack("!IIIII", mine, yours, 1000000, 1000000, 0)


def main():
    interface, mac, own, peer = sys.argv[1:5]
    rate, seconds, known = (int(word) for word in sys.argv[5:8])
    six = ":" in own

    def frame(payload, source=peer, ttl=255, port=3784):
        ip = IPv6(src=source, dst=own, hlim=ttl) if six else IP(src=source, dst=own, ttl=ttl)
        return bytes(Ether(dst=mac, src="02:00:00:00:66:66") / ip / UDP(sport=49152, dport=port) / Raw(payload))

    stranger = "fd00:bad::1" if six else "192.0.2.66"
    kinds = {
        # Off the link, or one hop too far: all of it is right but the TTL.
        "far-down": (frame(control(DOWN, known), ttl=254), "bfd-ttl"),
        "far-admin-down": (frame(control(ADMIN_DOWN, known), ttl=254), "bfd-ttl"),
        "far-restart": (frame(control(DOWN, 0), ttl=1), "bfd-ttl"),
        # On the link, without the discriminator.
        "guess": (frame(control(DOWN, known ^ 0x5555)), "bfd-unknown"),
        "stranger": (frame(control(DOWN, 0), source=stranger), "bfd-unknown"),
        "stranger-who-saw": (frame(control(DOWN, known), source=stranger), "bfd-unknown"),
        "several-hops": (frame(control(DOWN, known), port=4784), "bfd-unknown"),
        # Nonsense with everything right.
        "version": (frame(control(DOWN, known, version=0)), "bfd-malformed"),
        "length": (frame(control(DOWN, known, length=200)), "bfd-malformed"),
        "multiplier": (frame(control(DOWN, known, multiplier=0)), "bfd-malformed"),
        "nobody": (frame(control(DOWN, known, mine=0)), "bfd-malformed"),
        "up-without-a-number": (frame(control(UP, 0)), "bfd-malformed"),
        "short": (frame(control(DOWN, known)[:23]), "bfd-malformed"),
        "authenticated": (frame(control(DOWN, known, length=28, flags=4) + bytes([1, 4, 1, 120])), "bfd-authenticated"),
    }
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind((interface, 0))
    frames = [frame for frame, _ in kinds.values()]
    start, sent = time.monotonic(), 0
    while (passed := time.monotonic() - start) < seconds:
        while sent < passed * rate:
            sock.send(frames[sent % len(frames)])
            sent += 1
        time.sleep(0.001)
    names = {}
    for n, (_, name) in enumerate(kinds.values()):
        names[name] = names.get(name, 0) + sent // len(kinds) + (n < sent % len(kinds))
    print(json.dumps(names), flush=True)


main()
