#!/usr/bin/python3
"""A storm of DHCP.

    discover.py INTERFACE RATE SECONDS      RATE DHCPDISCOVERs a second, from the interface's MAC and the address 0.0.0.0

The last line is JSON: sent.
"""
import json
import socket
import struct
import sys
import time


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(mac):
    message = struct.pack("!BBBBIHH", 1, 1, 6, 0, 0x5EED, 0, 0) + bytes(16) + mac + bytes(10 + 192)
    message += b"\x63\x82\x53\x63" + b"\x35\x01\x01" + b"\xff"
    message += bytes(len(message) % 2)
    udp = struct.pack("!HHHH", 68, 67, 8 + len(message), 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp) + len(message), 0, 0, 64, 17, 0, bytes(4), b"\xff" * 4)
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    return b"\xff" * 6 + mac + b"\x08\x00" + ip + udp + message


def main(interface, rate, seconds):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.bind((interface, 0))
    data = frame(link.getsockname()[4])
    begin, sent = time.monotonic(), 0
    while (now := time.monotonic() - begin) < seconds:
        for _ in range(int(now * rate) - sent):
            link.send(data)
            sent += 1
        time.sleep(0.001)
    print(json.dumps({"sent": sent}))


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
