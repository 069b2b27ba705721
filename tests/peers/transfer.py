#!/usr/bin/python3
"""Sends random bytes to a server that returns them; both ends compare every byte. Exit status 0 means: all equal.

    transfer.py serve tcp|udp ADDRESS BYTES     prints "ready" when it listens, serves one client, ends
    transfer.py send  tcp|udp ADDRESS BYTES

Both ends derive the bytes from the same seed, so neither trusts the other. UDP goes as datagrams of 1 byte to 1400 bytes,
and one of 60000 bytes that the kernel has to cut into fragments; a lost datagram fails the transfer.
"""
import random
import socket
import sys

PORT = 7777
TIMEOUT = 10


def payload(size):
    return random.Random(7).randbytes(size)


def datagrams(data):
    """Cuts data into datagrams of many sizes, 1 byte among them, and adds the whole as one large datagram."""
    sizes, parts, at = random.Random(9), [], 0
    while at < len(data):
        size = 1 if not parts else sizes.randint(1, 1400)
        parts.append(data[at : at + size])
        at += size
    parts.append(data[:60000])
    return parts


def receive_exactly(connection, size):
    data = bytearray()
    while len(data) < size:
        part = connection.recv(65536)
        if not part:
            break
        data += part
    return bytes(data)


def fail(why):
    print(why, flush=True)
    sys.exit(1)


def check(what, wanted, got):
    if wanted != got:
        at = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), min(len(wanted), len(got)))
        fail(f"{what}: {len(got)} bytes instead of {len(wanted)}, first difference at byte {at}")


def main():
    role, protocol, address, size = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    data = payload(size)
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    sock = socket.socket(family, kind)
    sock.settimeout(TIMEOUT)
    if role == "serve":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, PORT))
        if protocol == "tcp":
            sock.listen()
        print("ready", flush=True)
    if protocol == "tcp" and role == "serve":
        connection, _ = sock.accept()
        connection.settimeout(TIMEOUT)
        check("server", data, receive_exactly(connection, size))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    elif protocol == "tcp":
        sock.connect((address, PORT))
        sock.sendall(data)
        check("client", data, receive_exactly(sock, size))
    elif role == "serve":
        for number, part in enumerate(datagrams(data)):
            got, client = sock.recvfrom(65535)
            check(f"server, datagram {number}", part, got)
            sock.sendto(got, client)
    else:
        sock.connect((address, PORT))
        for number, part in enumerate(datagrams(data)):
            sock.send(part)
            check(f"client, datagram {number}", part, sock.recv(65535))
    print("equal", flush=True)


try:
    main()
except OSError as error:
    fail(f"{sys.argv[1:]}: {error}")
