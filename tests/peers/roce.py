"""Reads captures and says what RoCEv2 is in them, by means of its own (no code of the switch): struct and zlib.

    roce.py sum FILE...               one JSON object: every stream's packets, payload bytes, CE marks and wrong ICRCs
    roce.py pick FILE OUT KIND=N...   writes to OUT the first N packets of each kind, in the order they were seen
    roce.py cnp OUT MACS IPS QPN      writes to OUT the frame of a CNP; source and target of each pair
    roce.py send OUT MACS IPS QPN     the same of a message of a reliable connection

A stream is (VNI or null, inner VLAN or null, source, destination, kind). Kinds are operation names of the BTH ("RC SEND_ONLY"),
for the connection manager its message ("CM REQ"). FILE is a pcap file of Ethernet frames, with or without VxLAN around them.
"""
import ipaddress
import json
import struct
import sys
import zlib

SEND = ["SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_ONLY", "SEND_ONLY_IMM"]
WRITE = ["WRITE_FIRST", "WRITE_MIDDLE", "WRITE_LAST", "WRITE_LAST_IMM", "WRITE_ONLY", "WRITE_ONLY_IMM"]
REST = ["READ_REQUEST", "READ_RESPONSE_FIRST", "READ_RESPONSE_MIDDLE", "READ_RESPONSE_LAST", "READ_RESPONSE_ONLY",
        "ACKNOWLEDGE", "ATOMIC_ACKNOWLEDGE", "COMPARE_SWAP", "FETCH_ADD", "RESERVED_15", "SEND_LAST_INV", "SEND_ONLY_INV"]
NAMES = SEND + WRITE + REST
TRANSPORTS = {0: "RC", 1: "UC", 3: "UD", 5: "XRC"}
# Bytes of the headers behind the BTH.
DETH, RETH, ATOMIC, AETH, ATOMIC_ACK, IMM = 8, 16, 28, 4, 12, 4
EXTRA = {"SEND_LAST_IMM": IMM, "SEND_ONLY_IMM": IMM, "WRITE_FIRST": RETH, "WRITE_ONLY": RETH, "WRITE_LAST_IMM": IMM,
         "WRITE_ONLY_IMM": RETH + IMM, "READ_REQUEST": RETH, "READ_RESPONSE_FIRST": AETH, "READ_RESPONSE_LAST": AETH,
         "READ_RESPONSE_ONLY": AETH, "ACKNOWLEDGE": AETH, "ATOMIC_ACKNOWLEDGE": ATOMIC_ACK, "COMPARE_SWAP": ATOMIC,
         "FETCH_ADD": ATOMIC, "SEND_LAST_INV": IMM, "SEND_ONLY_INV": IMM}
MESSAGES = {0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP", 0x17: "SIDR_REQ",
            0x18: "SIDR_REP", 0x19: "LAP", 0x1A: "APR"}
ROCE, VXLAN = 4791, 4789


def frames(path):
    """(record header and frame, frame, whole?) of a pcap file."""
    with open(path, "rb") as file:
        head = file.read(24)
        order = "<" if head[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
        if len(head) < 24 or struct.unpack(order + "I", head[20:])[0] & 0xFFFF != 1:
            sys.exit(f"{path} is no pcap file of Ethernet frames")
        yield head, None, False
        while len(record := file.read(16)) == 16:
            _, _, kept, length = struct.unpack(order + "IIII", record)
            frame = file.read(kept)
            yield record + frame, frame, len(frame) == length


def ip_packet(frame):
    """(VLAN, IP version, source, destination, ECN, offset of IP, offset of UDP, end) of a UDP packet, or None."""
    at, vlan = 12, None
    kind = int.from_bytes(frame[at:at + 2], "big")
    while kind in (0x8100, 0x88A8):
        vlan = int.from_bytes(frame[at + 2:at + 4], "big") & 0xFFF
        at += 4
        kind = int.from_bytes(frame[at:at + 2], "big")
    at += 2
    if kind == 0x0800 and len(frame) >= at + 28 and frame[at + 9] == 17:
        if int.from_bytes(frame[at + 6:at + 8], "big") & 0x3FFF:
            return None
        end = at + int.from_bytes(frame[at + 2:at + 4], "big")
        l4 = at + (frame[at] & 15) * 4
        return vlan, 4, frame[at + 12:at + 16], frame[at + 16:at + 20], frame[at + 1] & 3, at, l4, end
    if kind == 0x86DD and len(frame) >= at + 48 and frame[at + 6] == 17:
        end = at + 40 + int.from_bytes(frame[at + 4:at + 6], "big")
        return vlan, 6, frame[at + 8:at + 24], frame[at + 24:at + 40], frame[at + 1] >> 4 & 3, at, at + 40, end
    return None


def innermost(frame):
    """(VNI or None, the frame out of its tunnel, what `ip_packet` says of that)."""
    vni, found = None, ip_packet(frame)
    if found and int.from_bytes(frame[found[6] + 2:found[6] + 4], "big") == VXLAN:
        vni = int.from_bytes(frame[found[6] + 12:found[6] + 15], "big")
        frame = frame[found[6] + 16:]
        found = ip_packet(frame)
    return vni, frame, found


def icrc(version, packet, udp):
    """The ICRC that an IP packet (its last four bytes left out) should have; `udp` is the offset of its UDP header."""
    masked = bytearray(packet)
    ones = (1, 8, 10, 11) if version == 4 else (1, 2, 3, 7)
    if version == 6:
        masked[0] |= 0x0F
    for at in (*ones, udp + 6, udp + 7, udp + 12):
        masked[at] = 0xFF
    return zlib.crc32(bytes(masked), zlib.crc32(b"\xff" * 8))


def look(frame, whole):
    """(stream, payload bytes, CE?, ICRC right?) of a RoCEv2 frame, or None."""
    vni, frame, found = innermost(frame)
    if not found:
        return None
    vlan, version, source, target, ecn, l3, udp, end = found
    if int.from_bytes(frame[udp + 2:udp + 4], "big") != ROCE or len(frame) < udp + 24:
        return None
    opcode, pad = frame[udp + 8], frame[udp + 9] >> 4 & 3
    qpn = int.from_bytes(frame[udp + 13:udp + 16], "big")
    operation, transport = opcode & 31, TRANSPORTS.get(opcode >> 5)
    if opcode == 0x81:
        kind, extra = "CNP", 16
    elif transport is None or operation >= len(NAMES):
        kind, extra = f"opcode {opcode:#04x}", 0
    else:
        kind = f"{transport} {NAMES[operation]}"
        extra = EXTRA.get(NAMES[operation], 0) + (DETH if transport == "UD" else 0) + (4 if transport == "XRC" else 0)
        if transport == "UD" and qpn == 1 and len(frame) >= udp + 46:
            message = int.from_bytes(frame[udp + 44:udp + 46], "big")
            kind = f"CM {MESSAGES.get(message, hex(message))}"
        if kind == "RC ACKNOWLEDGE" and len(frame) > udp + 20 and frame[udp + 20] >> 5 & 3:
            kind = "RC RNR" if frame[udp + 20] >> 5 & 3 == 1 else "RC NAK"
    payload = end - udp - 8 - 12 - extra - pad - 4
    right = None
    if whole and len(frame) >= end:
        right = int.from_bytes(frame[end - 4:end], "little") == icrc(version, frame[l3:end - 4], udp - l3)
    stream = (vni, vlan, str(ipaddress.ip_address(source)), str(ipaddress.ip_address(target)), kind)
    return stream, payload, ecn == 3, right


def summary(paths):
    streams, seen = {}, 0
    for path in paths:
        for _, frame, whole in frames(path):
            if frame is None:
                continue
            seen += 1
            found = look(frame, whole)
            if found:
                stream, payload, marked, right = found
                sums = streams.setdefault(stream, [0, 0, 0, 0, 0])
                for at, value in enumerate((1, payload, marked, right is False, right is None)):
                    sums[at] += value
    names = ("vni", "vlan", "source", "destination", "kind")
    values = ("packets", "payload", "ce", "icrc-wrong", "icrc-unseen")
    rows = [dict(zip(names + values, (*stream, *sums))) for stream, sums in streams.items()]
    return {"frames": seen, "streams": rows}


def pick(path, out, wanted):
    left = {kind: int(count) for kind, _, count in (word.rpartition("=") for word in wanted)}
    taken = 0
    with open(out, "wb") as file:
        for raw, frame, whole in frames(path):
            found = None if frame is None else look(frame, whole)
            kind = found[0][4] if found else None
            if frame is None:
                file.write(raw)
            elif left.get(kind, 0) > 0 and whole:
                left[kind] -= 1
                taken += 1
                file.write(raw)
    return {"taken": taken, "missing": {kind: count for kind, count in left.items() if count}}


def cnp(*args):
    """Writes the frame of a congestion notification for a queue pair."""
    return write(0x81, bytes(16), *args)


def send(*args):
    """Writes the frame of a message of 16 bytes to a queue pair of a reliable connection."""
    return write(0x04, bytes(16), *args)


def write(opcode, payload, out, source_mac, target_mac, source, target, qpn):
    """Writes a frame to a queue pair at `target`, over IPv4 with ECT(0)."""
    becn = 0x40 if opcode == 0x81 else 0
    body = bytes([opcode, 0, 0xFF, 0xFF, becn]) + int(qpn).to_bytes(3, "big") + bytes(4) + payload
    udp = struct.pack("!4H", 0xC000, ROCE, 8 + len(body) + 4, 0)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 2, 20 + len(udp) + len(body) + 4, 0, 0x4000, 64, 17, 0,
                       ipaddress.ip_address(source).packed, ipaddress.ip_address(target).packed)
    total = sum(struct.unpack("!10H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", total ^ 0xFFFF) + head[12:]
    packet = head + udp + body
    packet += icrc(4, packet, len(head)).to_bytes(4, "little")
    macs = bytes.fromhex((target_mac + source_mac).replace(":", ""))
    with open(out, "wb") as file:
        file.write(macs + b"\x08\x00" + packet)
    return {"bytes": len(macs) + 2 + len(packet)}


if __name__ == "__main__":
    if sys.argv[1] == "sum":
        print(json.dumps(summary(sys.argv[2:])))
    elif sys.argv[1] in ("cnp", "send"):
        print(json.dumps({"cnp": cnp, "send": send}[sys.argv[1]](*sys.argv[2:])))
    else:
        print(json.dumps(pick(sys.argv[2], sys.argv[3], sys.argv[4:])))
