#!/usr/bin/python3
"""Numbered UDP datagrams of many flows at a steady pace, one way: what was lost tells for how long.

    paced.py serve ADDRESS                          prints "ready", counts until it is told the end, prints what it saw
    paced.py send  ADDRESS FLOWS EVERY_MS UNTIL     one datagram of each flow every EVERY_MS until the file UNTIL exists

A flow is a source port. The last line is JSON. Of the sender: rounds (datagrams of each flow). Of the receiver: by flow, in
order of their first datagrams, lost (of those before its last one) and longest (most lost in a row).
"""
import json
import os
import socket
import struct
import sys
import time

PORT = 7790
TIMEOUT = 60
END = b"end"


def serve(address):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.settimeout(TIMEOUT)
    sock.bind((address, PORT))
    print("ready", flush=True)
    flows = {}
    while True:
        data, client = sock.recvfrom(2048)
        if data == END:
            break
        number = struct.unpack("!Q", data)[0]
        expected, lost, longest = flows.get(client[1], (0, 0, 0))
        gap = max(number - expected, 0)
        flows[client[1]] = (max(expected, number + 1), lost + gap, max(longest, gap))
    told = [{"datagrams": expected - lost, "lost": lost, "longest": longest} for expected, lost, longest in flows.values()]
    print(json.dumps(told), flush=True)


def send(address, flows, every, until):
    socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(flows)]
    for sock in socks:
        sock.connect((address, PORT))
    start, rounds = time.monotonic(), 0
    while not os.path.exists(until):
        for sock in socks:
            sock.send(struct.pack("!Q", rounds))
        rounds += 1
        time.sleep(max(0, start + rounds * every - time.monotonic()))
    print(json.dumps({"rounds": rounds}), flush=True)
    # The end may be lost where the stream was.
    for sock in socks:
        for _ in range(3):
            sock.send(END)


def main():
    role, address = sys.argv[1:3]
    if role == "serve":
        serve(address)
    else:
        send(address, int(sys.argv[3]), float(sys.argv[4]) / 1000, sys.argv[5])


main()
