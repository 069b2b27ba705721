#!/usr/bin/python3
"""For how long was each of several machines out of reach, and did a connection live through it?

    outage.py echo ADDRESS                      prints "ready", returns each datagram to its sender
    outage.py probe EVERY_MS UNTIL ADDRESS...   a datagram to each address every EVERY_MS until the file UNTIL exists; prints
                                                "flowing" once each has answered for a while
    outage.py push ADDRESS                      prints "ready", sends known bytes to whoever connects, a little every 5 ms, and hears nothing
    outage.py pull ADDRESS UNTIL                connects, reads and says nothing until the file UNTIL exists and bytes still come after that

The last line of a probe is JSON: by address, sent, came, and longest_ms, the longest time between two answers. That of a pull is
JSON: bytes, and after, those that came after UNTIL was there.
"""
import json
import os
import select
import socket
import struct
import sys
import time

PORT = 7791
STREAM_PORT = 7792
TIMEOUT = 30
ENOUGH = 50
BLOCK = bytes(range(256)) * 4


def echo(address):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, PORT))
    print("ready", flush=True)
    while True:
        data, client = sock.recvfrom(2048)
        try:
            sock.sendto(data, client)
        except OSError:
            pass


def probe(every, until, addresses):
    socks = {}
    for address in addresses:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.connect((address, PORT))
        socks[sock] = {"address": address, "sent": 0, "came": 0, "longest": 0.0, "last": time.monotonic()}
    poll = select.poll()
    by_number = {sock.fileno(): sock for sock in socks}
    for number in by_number:
        poll.register(number, select.POLLIN)
    start, rounds, flowing, looked = time.monotonic(), 0, False, 0
    while True:
        now = time.monotonic()
        if now >= start + rounds * every:
            for sock, facts in socks.items():
                try:
                    sock.send(struct.pack("!Q", rounds))
                    facts["sent"] += 1
                except OSError:
                    pass
            rounds += 1
            if flowing and rounds % 10 == 0 and os.path.exists(until):
                break
        for number, _ in poll.poll(max(0, (start + rounds * every - time.monotonic()) * 1000)):
            facts = socks[by_number[number]]
            try:
                by_number[number].recv(2048)
            except OSError:
                continue
            now = time.monotonic()
            facts["longest"] = max(facts["longest"], now - facts["last"])
            facts["last"] = now
            facts["came"] += 1
        if not flowing and all(facts["came"] >= ENOUGH for facts in socks.values()):
            flowing = True
            for facts in socks.values():
                facts["longest"] = 0.0
            print("flowing", flush=True)
    told = {}
    for facts in socks.values():
        longest = max(facts["longest"], time.monotonic() - facts["last"])
        told[facts["address"]] = {"sent": facts["sent"], "came": facts["came"], "longest_ms": round(longest * 1000)}
    print(json.dumps(told), flush=True)


def push(address):
    sock = socket.create_server((address, STREAM_PORT))
    print("ready", flush=True)
    connection, _ = sock.accept()
    connection.settimeout(TIMEOUT)
    try:
        while True:
            connection.sendall(BLOCK)
            time.sleep(0.005)
    except (ConnectionError, OSError):
        pass


def pull(address, until):
    sock = socket.create_connection((address, STREAM_PORT), timeout=TIMEOUT)
    total, after = 0, 0
    while after < 64 * len(BLOCK):
        data = sock.recv(65536)
        if not data:
            sys.exit(f"the connection ended after {total} bytes")
        expected = bytes((total + at) % 256 for at in range(len(data)))
        if data != expected:
            sys.exit(f"other bytes came after {total}")
        if total == 0:
            print("flowing", flush=True)
        total += len(data)
        after += len(data) if after or os.path.exists(until) else 0
    print(json.dumps({"bytes": total, "after": after}), flush=True)


def main():
    role, rest = sys.argv[1], sys.argv[2:]
    if role == "echo":
        echo(rest[0])
    elif role == "probe":
        probe(float(rest[0]) / 1000, rest[1], rest[2:])
    elif role == "push":
        push(rest[0])
    else:
        pull(rest[0], rest[1])


main()
