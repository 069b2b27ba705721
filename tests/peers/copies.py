#!/usr/bin/python3
"""Numbered broadcasts into a network, and who gets a copy of each behind a tunnel.

    copies.py storm ADDRESS SECONDS        broadcasts as fast as it can, then prints {"sent": N}
    copies.py count IFACE PORT UNTIL       counts VxLAN packets with such a broadcast inside until the file UNTIL exists

The counter prints "ready", and at last as JSON: packets, numbers (of broadcasts that were seen), vteps (that got any), uneven (pairs of
number and VTEP that were seen more than once, or not at all though others saw the number), missed (what its socket had no room for).
"""
import collections
import json
import os
import socket
import struct
import sys
import time

MARK = b"storm of copies "
# Ethernet, IPv4 and UDP outside; VxLAN; the same inside.
INNER = 14 + 20 + 8 + 8
PAYLOAD = INNER + 14 + 20 + 8
SO_RCVBUFFORCE, SOL_PACKET, PACKET_STATISTICS = 33, 263, 6


def storm(address, seconds):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    sock.connect((address, 9))
    end, number = time.monotonic() + seconds, 0
    while number % 64 or time.monotonic() < end:
        try:
            sock.send(MARK + struct.pack("!Q", number))
            number += 1
        except OSError:
            # The interface has no room: as fast as it can is what was asked for.
            pass
    print(json.dumps({"sent": number}), flush=True)


def count(interface, port, until):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    sock.bind((interface, 0))
    sock.settimeout(0.2)
    print("ready", flush=True)
    seen, packets = collections.Counter(), 0
    while True:
        try:
            frame = sock.recv(2048)
        except TimeoutError:
            if os.path.exists(until):
                break
            continue
        if len(frame) < PAYLOAD + 24 or frame[PAYLOAD:PAYLOAD + 16] != MARK:
            continue
        if struct.unpack_from("!H", frame, 36)[0] != port or frame[INNER:INNER + 6] != b"\xff" * 6:
            continue
        packets += 1
        seen[struct.unpack_from("!Q", frame, PAYLOAD + 16)[0], frame[30:34]] += 1
    numbers, vteps = {number for number, _ in seen}, {vtep for _, vtep in seen}
    uneven = sum(times != 1 for times in seen.values()) + len(numbers) * len(vteps) - len(seen)
    missed = struct.unpack("II", sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
    print(json.dumps({"packets": packets, "numbers": len(numbers), "vteps": len(vteps), "uneven": uneven, "missed": missed}), flush=True)


if sys.argv[1] == "storm":
    storm(sys.argv[2], float(sys.argv[3]))
else:
    count(sys.argv[2], int(sys.argv[3]), sys.argv[4])
