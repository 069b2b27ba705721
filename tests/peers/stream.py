#!/usr/bin/python3
"""One TCP connection that carries known bytes both ways, for as long as a scenario wants; every byte is compared.

    stream.py serve ADDRESS         prints "ready", returns what it gets to one client, ends with it
    stream.py send  ADDRESS UNTIL   sends blocks, ten at least, and compares what comes back until the file UNTIL exists

The last line of the sender is JSON: bytes. Exit status 0 means: all equal, nothing missing.
"""
import json
import os
import random
import socket
import sys

PORT = 7799
TIMEOUT = 10
BLOCK = 16384
LEAST = 10 * BLOCK


def main():
    role, address = sys.argv[1:3]
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(TIMEOUT)
    if role == "serve":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, PORT))
        sock.listen()
        print("ready", flush=True)
        connection, _ = sock.accept()
        connection.settimeout(TIMEOUT)
        while data := connection.recv(65536):
            connection.sendall(data)
        return
    sock.connect((address, PORT))
    total, numbers = 0, random.Random(11)
    print("connected", flush=True)
    while total < LEAST or not os.path.exists(sys.argv[3]):
        block, got = numbers.randbytes(BLOCK), b""
        sock.sendall(block)
        while len(got) < len(block):
            part = sock.recv(65536)
            if not part:
                sys.exit(f"the connection ended after {total + len(got)} bytes")
            got += part
        if got != block:
            sys.exit(f"other bytes came back after {total}")
        total += len(block)
    print(json.dumps({"bytes": total}), flush=True)


try:
    main()
except OSError as error:
    sys.exit(f"{sys.argv[1:]}: {error}")
