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


def stream(sender, receiver, frames, pace=0.00005):
    """Sends frames from one raw socket while reading the other; what arrived: packets, good ICRCs, CE marks, order."""
    result = {"sent": len(frames), "received": 0, "icrc_ok": 0, "ce_sent": sum(f[15] & 3 == CE for f in frames), "ce_received": 0, "in_order": True}
    last_psn = -1

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
        sender.send(frame)
        if number % 16 == 0:
            read(0)
            # A paced stream: what is shown is correctness, not the speed of a Python loop.
            time.sleep(pace)
    end = time.monotonic() + 3
    while result["received"] < result["sent"] and time.monotonic() < end:
        read(0.1)
    result["seconds"] = round(time.monotonic() - began, 2)
    return result
