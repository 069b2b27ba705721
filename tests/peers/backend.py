#!/usr/bin/python3
"""A vhost-user back end that lies about the length of what it writes into the front end's buffers.

    backend.py SOCKET FRAME LENGTH...

Listens on SOCKET for one front end (virtio-user), waits for its first ring, and writes FRAME (hexadecimal) into one buffer for
each LENGTH, saying that it wrote so many bytes; 0 is the truth. Prints a line when it listens and one when it has written all,
and then holds the connection until it is killed. Split rings only; nothing of the second ring is looked at.
"""

import mmap
import os
import socket
import struct
import sys
import time

GET_FEATURES, SET_MEM_TABLE, GET_VRING_BASE, SET_VRING_NUM, SET_VRING_ADDR = 1, 5, 11, 8, 9
SET_VRING_BASE, SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR = 10, 12, 13, 14
VERSION_1 = 1 << 32
# In front of each frame with VERSION_1: struct virtio_net_hdr_v1, all zero but the number of buffers.
NET_HEADER = bytes(10) + struct.pack("<H", 1)


class Memory:
    """The front end's memory, by the addresses that it uses itself."""

    def __init__(self):
        self.regions = []

    def share(self, payload, files):
        self.regions = []
        (count,) = struct.unpack_from("<I", payload)
        for index, file in zip(range(count), files):
            _, size, user, offset = struct.unpack_from("<QQQQ", payload, 8 + 32 * index)
            self.regions.append((user, size, offset, mmap.mmap(file, size + offset)))

    def at(self, address, length):
        for user, size, offset, memory in self.regions:
            if user <= address and address + length <= user + size:
                return memory, address - user + offset
        raise SystemExit(f"nothing is shared at {address:#x}")

    def read(self, address, length):
        memory, at = self.at(address, length)
        return memory[at : at + length]

    def write(self, address, data):
        memory, at = self.at(address, len(data))
        memory[at : at + len(data)] = data


def receive(link):
    """One message: its number, its flags, its payload, its files."""
    head, files, _, _ = socket.recv_fds(link, 12, 8)
    if len(head) < 12:
        raise SystemExit("the front end is gone")
    number, flags, size = struct.unpack("<III", head)
    payload = link.recv(size, socket.MSG_WAITALL) if size else b""
    return number, flags, payload, files


def offer(memory, ring, size, frame, lengths):
    """Writes the frame into one free buffer after the other."""
    descriptors, used, available = ring
    done = 0
    for length in lengths:
        while struct.unpack("<H", memory.read(available + 2, 2))[0] == done & 0xFFFF:
            time.sleep(0.001)
        (index,) = struct.unpack("<H", memory.read(available + 4 + 2 * (done % size), 2))
        (address,) = struct.unpack("<Q", memory.read(descriptors + 16 * index, 8))
        memory.write(address, NET_HEADER + frame)
        said = len(NET_HEADER) + (length or len(frame))
        memory.write(used + 4 + 8 * (done % size), struct.pack("<II", index, said))
        done += 1
        memory.write(used + 2, struct.pack("<H", done & 0xFFFF))


def main():
    path, frame, lengths = sys.argv[1], bytes.fromhex(sys.argv[2]), [int(word) for word in sys.argv[3:]]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    print("listening", flush=True)
    link, _ = listener.accept()
    memory, sizes, rings, offered = Memory(), {}, {}, False
    while True:
        number, _, payload, files = receive(link)
        if number == GET_FEATURES:
            link.sendall(struct.pack("<IIIQ", number, 5, 8, VERSION_1))
        elif number == SET_MEM_TABLE:
            memory.share(payload, files)
        elif number == SET_VRING_NUM:
            ring, sizes[ring] = struct.unpack("<II", payload)
        elif number == SET_VRING_ADDR:
            ring, _, descriptors, used, available = struct.unpack_from("<IIQQQ", payload)
            rings[ring] = (descriptors, used, available)
        elif number == GET_VRING_BASE:
            link.sendall(struct.pack("<IIIII", number, 5, 8, struct.unpack("<I", payload[:4])[0], 0))
        elif number == SET_VRING_KICK and payload[0] == 0 and not offered:
            offer(memory, rings[0], sizes[0], frame, lengths)
            offered = True
            print("written", flush=True)
        if number in (SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR):
            for file in files:
                os.close(file)


main()
