#!/usr/bin/python3
"""A machine on the link that answers echo requests to its address, and says much else besides.

    echo_liar.py INTERFACE OTHER STORM

Each request is answered rightly, twice, and before that by lies: wrong identifier, sequence number, source (OTHER), data, length and checksum;
errors that name absurd MTUs, or are about another packet; and STORM replies with sequence numbers that nobody sent. Prints "ready".
"""
import socket
import struct
import sys

from scapy.all import ICMP, IP, Ether, Raw


def main():
    interface, other, storm = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    sock.bind((interface, 0))
    print("ready", flush=True)
    while True:
        frame = sock.recv(65535)
        # An echo request of IPv4 without options.
        if len(frame) < 42 or frame[23] != 1 or frame[34] != 8:
            continue
        to, own = frame[6:12], frame[0:6]
        source, destination = (socket.inet_ntoa(frame[at : at + 4]) for at in (30, 26))
        number, sequence = struct.unpack("!HH", frame[38:42])
        data = frame[42:]

        def reply(number=number, sequence=sequence, source=source, data=data):
            packet = Ether(dst=to, src=own) / IP(src=source, dst=destination) / ICMP(type=0, id=number, seq=sequence) / Raw(data)
            return bytes(packet)

        def too_big(mtu, quoted=frame[14:70], source=source):
            packet = Ether(dst=to, src=own) / IP(src=source, dst=destination) / ICMP(type=3, code=4, nexthopmtu=mtu) / Raw(quoted)
            return bytes(packet)

        elsewhere = bytearray(frame[14:70])
        elsewhere[16:20] = socket.inet_aton(other)
        spoilt = bytearray(reply())
        spoilt[-1] ^= 1
        lies = [
            reply(number=number ^ 1),
            reply(sequence=sequence ^ 0x5555),
            reply(source=other),
            reply(data=b"\0" * len(data)),
            reply(data=data[:8]),
            reply(data=b""),
            bytes(spoilt),
            reply()[:50],
            too_big(65535),
            too_big(len(frame) - 14),
            too_big(68, quoted=bytes(elsewhere)),
            too_big(68, quoted=frame[14:30]),
            too_big(68, quoted=frame[14:34] + b"\x08\x00\0\0" + struct.pack("!HH", number ^ 1, sequence)),
            too_big(68, quoted=frame[14:34] + b"\x08\x00\0\0" + struct.pack("!HH", number, sequence ^ 1)),
        ]
        for lie in lies:
            sock.send(lie)
        if storm:
            one = bytearray(reply(data=data[:8]))
            for _ in range(storm):
                # The checksum stays right: what the one field gains the other loses.
                kept = struct.unpack("!H", one[36:38])[0] + struct.unpack("!H", one[40:42])[0]
                wrong = (struct.unpack("!H", one[40:42])[0] + 7) & 0xFFFF
                one[40:42] = struct.pack("!H", wrong)
                one[36:38] = struct.pack("!H", (kept - wrong) % 0xFFFF)
                sock.send(bytes(one))
        sock.send(reply())
        sock.send(reply())


main()
