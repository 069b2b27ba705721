#!/usr/bin/python3
"""Numbered UDP datagrams of many flows, echoed; each end looks for loss, doubles and wrong order in each flow by itself.

    flows.py serve ADDRESS                        prints "ready", echoes until it is told the end, prints what it saw
    flows.py send  ADDRESS FLOWS COUNT            COUNT datagrams in each flow; prints what came back
    flows.py send  ADDRESS FLOWS COUNT UNTIL      goes on in rounds of COUNT until the file UNTIL exists

A flow is a source port. No more than WINDOW datagrams are on their way, so that no queue on the way has to drop. The last
line is JSON: flows, datagrams, disordered (a number below an earlier one of its flow), doubled, lost.
"""
import json
import os
import select
import socket
import struct
import sys
import time

PORT = 7788
WINDOW = 48
TIMEOUT = 5.0
END = b"end"


class Order:
    """What one end saw of each flow: all numbers below a floor, and some above it."""

    def __init__(self):
        self.next, self.floor, self.above, self.disordered, self.doubled = {}, {}, {}, 0, 0

    def note(self, flow, number):
        floor, above = self.floor.get(flow, 0), self.above.setdefault(flow, set())
        if number < floor or number in above:
            self.doubled += 1
        else:
            above.add(number)
            while floor in above:
                above.remove(floor)
                floor += 1
            self.floor[flow] = floor
        if number < self.next.get(flow, 0):
            self.disordered += 1
        self.next[flow] = max(self.next.get(flow, 0), number + 1)

    def datagrams(self):
        return sum(self.floor.get(flow, 0) + len(above) for flow, above in self.above.items())

    def tell(self, lost):
        print(json.dumps({"flows": len(self.above), "datagrams": self.datagrams(), "disordered": self.disordered, "doubled": self.doubled, "lost": lost}), flush=True)


def serve(address):
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind((address, PORT))
    print("ready", flush=True)
    order = Order()
    while True:
        data, client = sock.recvfrom(2048)
        if data == END:
            break
        order.note(client[1], struct.unpack_from("!Q", data)[0])
        sock.sendto(data, client)
    order.tell(sum(order.next.values()) - order.datagrams())


def send(address, flows, count, until):
    socks = []
    poll = select.poll()
    for _ in range(flows):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.connect((address, PORT))
        sock.setblocking(False)
        socks.append(sock)
        poll.register(sock, select.POLLIN)
    by_handle = {sock.fileno(): number for number, sock in enumerate(socks)}
    order, sent, back, number, lost = Order(), 0, 0, 0, 0

    def collect(allowed):
        """Takes echoes until no more than `allowed` datagrams are on their way."""
        nonlocal back
        end = time.monotonic() + TIMEOUT
        while sent - back - lost > allowed:
            for handle, _ in poll.poll(50):
                flow = by_handle[handle]
                try:
                    while True:
                        order.note(flow, struct.unpack_from("!Q", socks[flow].recv(2048))[0])
                        back += 1
                        end = time.monotonic() + TIMEOUT
                except BlockingIOError:
                    pass
            if time.monotonic() > end:
                return False
        return True

    while True:
        for _ in range(count):
            for sock in socks:
                sock.send(struct.pack("!Q", number) + b"x" * 56)
                sent += 1
                if not collect(WINDOW - 1):
                    lost = sent - back
            number += 1
        if until is None or os.path.exists(until):
            break
    if not collect(0):
        lost = sent - back
    for _ in range(3):
        socks[0].send(END)
    order.tell(lost)


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else None)
