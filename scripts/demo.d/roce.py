"""A RoCEv2 stream: RC SEND packets with a valid invariant CRC, made with scapy, checked on arrival by hand.

The ICRC is computed twice by different code (scapy's when sending, zlib here when receiving), so that neither mistake hides
the other. Some packets carry ECN congestion-experienced: the tunnel must keep the mark, and the ICRC holds all the same,
because it leaves the fields out that a network may change.
"""
import select
import struct
import time
import zlib

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

PORT = 4791
SEND_ONLY = 0x04
ECT_0, CE = 2, 3


def packets(source, target, qpn, count, marked_every):
    """Frames of one queue pair; source and target are (MAC, address)."""
    (smac, sip), (dmac, dip) = source, target
    frames = []
    for psn in range(count):
        ecn = CE if psn % marked_every == 0 else ECT_0
        payload = struct.pack("!I", psn) * 64
        frame = (
            Ether(src=smac, dst=dmac)
            / IP(src=sip, dst=dip, tos=26 << 2 | ecn, flags="DF", id=0)
            / UDP(sport=49152 + qpn % 1000, dport=PORT, chksum=0)
            / BTH(opcode=SEND_ONLY, dqpn=qpn, psn=psn, ackreq=1, migreq=1)
            / Raw(payload)
        )
        frames.append(bytes(frame))
    return frames


def icrc_holds(frame):
    """Whether the last four bytes of an Ethernet/IPv4/UDP/BTH frame are its ICRC."""
    network = bytearray(frame[14 : 14 + struct.unpack("!H", frame[16:18])[0]])
    network[1] = network[8] = network[10] = network[11] = 0xFF  # TOS, TTL, header checksum
    network[26] = network[27] = 0xFF  # UDP checksum
    network[32] = 0xFF  # FECN, BECN and reserved bits of the BTH
    crc = zlib.crc32(bytes(network[:-4]), zlib.crc32(b"\xff" * 8))
    return struct.pack("<I", crc) == bytes(network[-4:])


def stream(sender, receiver, frames, window=128):
    """Sends frames from one raw socket while reading the other; what arrived: packets, good ICRCs, CE marks, order.

    As a reliable connection does, it keeps a bounded number of packets on their way: the queues of taps and sockets are
    short, and what is shown here is correctness, not how much a loaded machine can buffer.
    """
    result = {"sent": len(frames), "received": 0, "icrc_ok": 0, "ce_sent": sum(f[15] & 3 == CE for f in frames), "ce_received": 0, "in_order": True}
    last_psn, lost = -1, 0

    def read(timeout):
        nonlocal last_psn
        while select.select([receiver], [], [], timeout)[0]:
            timeout = 0
            frame, address = receiver.recvfrom(65535)
            if address[2] == 4 or frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[36:38] != struct.pack("!H", PORT):
                continue
            psn = int.from_bytes(frame[51:54], "big")
            result["received"] += 1
            result["icrc_ok"] += icrc_holds(frame)
            result["ce_received"] += frame[15] & 3 == CE
            result["in_order"] &= psn > last_psn
            last_psn = psn

    began = time.monotonic()
    for number, frame in enumerate(frames):
        # A packet that never comes must not stop the stream: it will be missed in the sum.
        patience = time.monotonic() + 1
        while number - result["received"] - lost >= window:
            read(0.01)
            if time.monotonic() > patience:
                lost = number - result["received"]
        sender.send(frame)
    end = time.monotonic() + 3
    while result["received"] < result["sent"] and time.monotonic() < end:
        read(0.1)
    result["seconds"] = round(time.monotonic() - began, 2)
    return result
