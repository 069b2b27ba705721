"""Judges captured RoCEv2 by the rules of reliable connections, by means of its own (no code of the switch).

    gobackn.py judge [loss=N] [timeout=S] FILE...   one observation point; several files (one a direction) are merged by time,
                                                    up to the end of the first that ends
    gobackn.py way SENT ARRIVED                     what arrived of each queue pair is what was sent, in that order

`judge` prints one JSON object: what was seen, and `violations`, each a rule, a queue pair and a PSN. The rules, each from the IBTA's
chapter on reliable service and its annex on RoCEv2:

    icrc            the ICRC is right
    gap             PSNs of new requests follow each other; `loss` so many holes are forgiven, when they are filled again
    unrepaired      a hole was never filled
    changed         a PSN that is sent again carries the same operation and the same bytes; a READ may begin later
    unprovoked      nothing is sent again without a NAK, an answer out of order, or `timeout` seconds of silence
    opcode          FIRST, MIDDLE, LAST and ONLY follow each other as they must
    early-answer    an answer has the PSN of a request that came before it, and of none behind a hole
    read-shape      READ responses have the PSNs, the positions and, in sum, the bytes that their request asked for
    cnp             a CNP has its one form, and goes to a queue pair of somebody who sends
"""
import json
import sys
import zlib
from collections import Counter

from roce import AETH, EXTRA, NAMES, ROCE, frames, icrc, innermost

SPACE = 1 << 24
HALF = SPACE >> 1
# Smallest time after which a queue pair of soft-RoCE gives up waiting, of all that tools ask for: 67 ms (ibv_rc_pingpong).
TIMEOUT = 0.06
FIRST, MIDDLE, LAST, ONLY = "FIRST", "MIDDLE", "LAST", "ONLY"
ANSWERS = ("READ_RESPONSE", "ACKNOWLEDGE", "ATOMIC_ACKNOWLEDGE")
# More of one capture would say nothing new.
TOLD = 50


def ahead(a, b):
    """How far PSN `a` is ahead of `b`; negative when it is behind."""
    return (a - b + HALF) % SPACE - HALF


class Packet:
    """A RoCEv2 packet of a capture: its time, stream, operation and what the rules compare."""

    def __init__(self, time, vni, vlan, version, frame, l3, udp, end, source, target, whole):
        at = udp + 8
        self.time, self.opcode = time, frame[at]
        self.pad = frame[at + 1] >> 4 & 3
        self.ecn_byte = frame[at + 4]
        self.qpn = int.from_bytes(frame[at + 5:at + 8], "big")
        self.psn = int.from_bytes(frame[at + 9:at + 12], "big")
        self.hosts = (vni, vlan, source, target)
        self.flow = (*self.hosts, self.qpn)
        operation = self.opcode & 31
        self.cnp = self.opcode == 0x81
        self.reliable = self.opcode >> 5 == 0 and operation < len(NAMES)
        self.name = NAMES[operation] if self.reliable else ""
        self.headers = EXTRA.get(self.name, 0)
        self.aeth = frame[at + 12] if self.headers and self.name.startswith(ANSWERS) else None
        self.reth = frame[at + 12:at + 28] if self.name == "READ_REQUEST" else b""
        self.body = frame[at + 12:end - 4]
        self.payload = end - udp - 8 - 12 - self.headers - self.pad - 4
        # The AETH's syndrome and message number say how far the responder is by now.
        same = frame[at + 12 + AETH:end - 4] if self.aeth is not None else self.body
        self.bytes = zlib.crc32(bytes(same))
        self.right = None
        if whole and len(frame) >= end:
            self.right = int.from_bytes(frame[end - 4:end], "little") == icrc(version, frame[l3:end - 4], udp - l3)

    @property
    def answer(self):
        return self.name.startswith(ANSWERS)

    @property
    def nak(self):
        return self.aeth is not None and self.aeth >> 5 & 3 in (1, 3)

    @property
    def position(self):
        return next((p for p in (FIRST, MIDDLE, LAST, ONLY) if p in self.name.split("_")), None)

    def read(self):
        """(address, length) of a READ request."""
        return int.from_bytes(self.reth[:8], "big"), int.from_bytes(self.reth[12:16], "big")


def packets(path):
    """The RoCEv2 packets of a capture, with their times in seconds."""
    order, scale = "little", 1e-6
    for record, frame, whole in frames(path):
        if frame is None:
            order = "little" if record[:1] in (b"\xd4", b"\x4d") else "big"
            scale = 1e-9 if record[:4] in (b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d") else 1e-6
            continue
        time = int.from_bytes(record[:4], order) + int.from_bytes(record[4:8], order) * scale
        vni, frame, found = innermost(frame)
        if not found:
            continue
        vlan, version, source, target, ecn, l3, udp, end = found
        if int.from_bytes(frame[udp + 2:udp + 4], "big") == ROCE and len(frame) >= udp + 24:
            packet = Packet(time, vni, vlan, version, frame, l3, udp, end, source, target, whole)
            packet.ce = ecn == 3
            yield packet


class Half:
    """One direction of a queue pair: its requests, and what the other direction answered to them."""

    def __init__(self, judge, flow):
        self.judge, self.flow = judge, flow
        self.next = None          # PSN that a new request has
        self.sent = {}            # PSN -> (name, bytes, time seen last)
        self.reads = {}           # PSN -> (first PSN, PSN behind it, address, length)
        self.holes = set()        # PSNs that were left out so far
        self.before = None        # name of the last new request
        self.repeat = None        # PSN that a repetition goes on with
        self.cause = None         # what called for a repetition last
        self.heard = None         # time of the last answer
        self.answered = {}        # PSN -> bytes of the READ response
        self.due = None           # PSN of the READ response that comes next
        self.again = False        # READ responses are being repeated
        self.first = None

    def wrong(self, rule, packet, why=""):
        self.judge.wrong(rule, packet, why)

    def width(self, packet):
        """PSNs that a request takes: a READ takes those of its answers."""
        if packet.name != "READ_REQUEST":
            return 1
        return max(1, -(-packet.read()[1] // self.judge.mtu(packet.hosts)))

    def request(self, packet):
        width = self.width(packet)
        if self.next is None:
            self.next = self.first = packet.psn
        distance = ahead(packet.psn, self.next)
        if distance < 0:
            self.repetition(packet, width)
        else:
            if distance:
                self.judge.holes += 1
                self.holes.update((self.next + n) % SPACE for n in range(min(distance, 1 << 16)))
                self.judge.gap(packet, distance)
            elif self.before:
                self.follows(packet)
            self.before = packet.name
            self.next = (packet.psn + width) % SPACE
            self.repeat = None
            self.remember(packet, width)
        self.sent[packet.psn] = (packet.name, packet.bytes, packet.time)

    def remember(self, packet, width):
        if packet.name == "READ_REQUEST":
            address, length = packet.read()
            for n in range(width):
                self.reads[(packet.psn + n) % SPACE] = (packet.psn, (packet.psn + width) % SPACE, address, length)

    def follows(self, packet):
        """Positions of a message that goes over several packets."""
        inside = self.before.split("_")[1:2] and self.before.split("_")[1] in (FIRST, MIDDLE)
        position, kind = packet.position, packet.name.split("_")[0]
        if inside != (position in (MIDDLE, LAST)) or inside and kind != self.before.split("_")[0]:
            self.wrong("opcode", packet, f"{packet.name} behind {self.before}")

    def repetition(self, packet, width):
        self.judge.repetitions += 1
        filled = packet.psn in self.holes
        known = self.sent.get(packet.psn)
        read = self.reads.get(packet.psn)
        if known is None and not filled and read is None:
            # Sent before this capture began, or a PSN inside a READ that is no READ.
            if ahead(packet.psn, self.first) >= 0:
                self.wrong("changed", packet, "this PSN was not sent as a request")
            return
        if packet.name == "READ_REQUEST" and read:
            self.repeated_read(packet, read)
        elif known and known[:2] != (packet.name, packet.bytes):
            self.wrong("changed", packet, f"{packet.name} instead of {known[0]}, or other bytes")
        # The first packet of a repetition has a cause; those behind it follow it.
        if self.repeat is None or packet.psn != self.repeat:
            last = max(filter(None, (known and known[2], self.heard, None)), default=None)
            silent = last is None or packet.time - last >= self.judge.timeout
            known_silent = known is None or packet.time - known[2] >= self.judge.timeout
            if self.cause is None and not silent and not known_silent:
                self.wrong("unprovoked", packet, f"{packet.time - known[2]:.6f} s after it was sent")
            self.cause = None
        self.repeat = (packet.psn + width) % SPACE
        for n in range(width):
            self.holes.discard((packet.psn + n) % SPACE)
        if filled:
            self.remember(packet, width)

    def repeated_read(self, packet, read):
        first, end, address, length = read
        skipped = ahead(packet.psn, first) * self.judge.mtu(packet.hosts)
        if packet.read() != (address + skipped, length - skipped):
            self.wrong("changed", packet, "a READ that is asked for again asks for the rest of what it asked for")

    def answer(self, packet):
        """What the other direction says of this one's requests."""
        self.heard = packet.time
        if self.next is None:
            return
        limit = min((ahead(hole, self.first) for hole in self.holes), default=ahead(self.next, self.first))
        at = ahead(packet.psn, self.first)
        if packet.nak:
            self.judge.naks += 1
            self.cause, self.repeat = "nak", None
            # The NAK of a PSN that is missed names it: it may be the hole itself, or what was lost behind this point.
            if at > ahead(self.next, self.first):
                self.wrong("early-answer", packet, "a NAK of what was not sent")
            return
        if at >= limit:
            self.wrong("early-answer", packet, f"{packet.name} before its request")
            return
        if packet.name.startswith("READ_RESPONSE"):
            self.read_response(packet)
        elif packet.name == "ATOMIC_ACKNOWLEDGE":
            known = self.sent.get(packet.psn)
            if known and known[0] not in ("COMPARE_SWAP", "FETCH_ADD"):
                self.wrong("early-answer", packet, f"the answer of an atomic operation to a {known[0]}")
        elif self.due is not None and ahead(packet.psn, self.due) >= 0:
            # An ACK behind READ responses that are still due: the requester takes it for their loss.
            self.cause, self.repeat, self.due = "answer", None, None

    def read_response(self, packet):
        read = self.reads.get(packet.psn)
        if read is None:
            if at_least(packet.psn, self.first):
                self.wrong("read-shape", packet, "there is no READ of this PSN")
            return
        first, end, _, length = read
        if self.due is not None and packet.psn != self.due:
            if packet.psn in self.answered:
                self.again = True
            elif ahead(packet.psn, self.due) > 0:
                self.judge.answer_gap(packet, ahead(packet.psn, self.due))
                self.cause, self.repeat = "answer", None
        known = self.answered.get(packet.psn)
        if known is not None:
            self.judge.answer_repetitions += 1
            if known != (packet.payload, packet.bytes):
                self.wrong("changed", packet, "a READ response with other bytes than before")
        self.answered[packet.psn] = (packet.payload, packet.bytes)
        mtu = self.judge.mtu(packet.hosts)
        place, last = ahead(packet.psn, first), ahead(end, packet.psn) == 1
        wanted = length - place * mtu if last else mtu
        if packet.payload != wanted:
            self.wrong("read-shape", packet, f"{packet.payload} bytes instead of {wanted}")
        # One that is asked for again from its middle begins with FIRST there.
        if (packet.position in (LAST, ONLY)) != last:
            self.wrong("read-shape", packet, f"{packet.name} at {place} of a READ of {length} bytes")
        self.due = None if last else (packet.psn + 1) % SPACE

    def end(self):
        if self.holes:
            self.judge.violations.append({"rule": "unrepaired", "flow": text(self.flow), "psn": min(self.holes),
                                          "why": f"{len(self.holes)} packets"})


def at_least(psn, first):
    return ahead(psn, first) >= 0


def text(flow):
    return " ".join(part.hex() if isinstance(part, bytes) else str(part) for part in flow)


class Judge:
    """All queue pairs of one observation point."""

    def __init__(self, loss=0, timeout=TIMEOUT):
        self.loss, self.timeout = loss, timeout
        self.violations, self.halves = [], {}
        self.holes = self.repetitions = self.naks = self.answer_repetitions = self.forgiven = self.unseen = 0
        self.mtus, self.seen, self.partner = {}, Counter(), {}

    def wrong(self, rule, packet, why=""):
        self.violations.append({"rule": rule, "flow": text(packet.flow), "psn": packet.psn, "time": packet.time, "why": why})

    def gap(self, packet, width):
        self.forgiven += 1
        if self.forgiven > self.loss:
            self.wrong("gap", packet, f"{width} PSNs left out")

    answer_gap = gap

    def mtu(self, hosts):
        vni, vlan, *pair = hosts
        return self.mtus.get((vni, vlan, frozenset(pair)), 1 << 31)

    def survey(self, all_packets):
        """What must be known before: the path MTU, and which two directions are one queue pair."""
        answers, requests = {}, {}
        for packet in all_packets:
            if not packet.reliable:
                continue
            vni, vlan, *pair = packet.hosts
            if packet.position in (FIRST, MIDDLE):
                key = (vni, vlan, frozenset(pair))
                self.mtus[key] = max(self.mtus.get(key, 0), packet.payload)
            if packet.answer:
                answers.setdefault(packet.flow, []).append(packet.psn)
            else:
                requests.setdefault(packet.flow, set()).add(packet.psn)
        # The flow whose PSNs are answered: PSNs begin anywhere, so hardly two queue pairs of two hosts have common ones.
        for flow, psns in answers.items():
            vni, vlan, source, target, _ = flow
            sample = psns[:: max(1, len(psns) // 64)]
            fitting = [(sum(near(psn, sent) for psn in sample), other) for other, sent in requests.items()
                       if other[:4] == (vni, vlan, target, source)]
            if fitting and max(fitting)[0]:
                self.partner[flow] = max(fitting)[1]

    def half(self, flow):
        if flow not in self.halves:
            self.halves[flow] = Half(self, flow)
        return self.halves[flow]

    def take(self, packet, senders):
        self.seen["packets"] += 1
        if packet.right is False:
            self.wrong("icrc", packet)
        self.unseen += packet.right is None
        if packet.cnp:
            self.cnp(packet, senders)
        elif packet.reliable and packet.answer:
            self.seen["answers"] += 1
            if packet.flow in self.partner:
                self.half(self.partner[packet.flow]).answer(packet)
        elif packet.reliable:
            self.seen["requests"] += 1
            self.half(packet.flow).request(packet)

    def cnp(self, packet, senders):
        self.seen["cnps"] += 1
        form = packet.ecn_byte == 0x40 and packet.psn == 0 and packet.pad == 0 and bytes(packet.body) == bytes(16)
        if not form or packet.ce:
            self.wrong("cnp", packet, "its form")
        elif packet.flow not in senders:
            self.wrong("cnp", packet, "there is no such queue pair")

    def run(self, all_packets):
        self.survey(all_packets)
        # A CNP goes to the queue pair that answers go to.
        senders = {packet.flow for packet in all_packets if packet.reliable}
        for packet in all_packets:
            self.take(packet, senders)
        for half in self.halves.values():
            half.end()
        return {"packets": self.seen["packets"], "requests": self.seen["requests"], "answers": self.seen["answers"],
                "cnps": self.seen["cnps"], "queue-pairs": len({p.flow for p in all_packets if p.reliable}),
                "gaps": self.forgiven, "repetitions": self.repetitions, "answer-repetitions": self.answer_repetitions,
                "naks": self.naks, "icrc-unseen": self.unseen, "violations": self.violations[:TOLD],
                "violation-count": len(self.violations)}


def near(psn, sent):
    """Whether a PSN is one of those sent, or of the answers to a READ shortly behind one."""
    return psn in sent or any((psn - n) % SPACE in sent for n in range(1, 65))


def way(sent_path, arrived_path):
    """Compares two captures of one way: what arrived must be, for each queue pair, a part of what was sent in that order."""
    sent, result = {}, {"packets": 0, "lost": 0, "violations": []}
    identity = lambda p: (p.psn, p.opcode, zlib.crc32(bytes(p.body)))
    for packet in packets(sent_path):
        sent.setdefault(packet.flow[2:], []).append(identity(packet))
    arrived = {}
    for packet in packets(arrived_path):
        arrived.setdefault(packet.flow[2:], []).append(identity(packet))
    for flow, got in arrived.items():
        had, at, result["packets"] = sent.get(flow, []), 0, result["packets"] + len(got)
        for number, packet in enumerate(got):
            try:
                at = had.index(packet, at) + 1
            except ValueError:
                result["violations"].append({"rule": "order", "flow": text(flow), "psn": packet[0], "why": f"packet {number} was not sent then"})
                break
    result["lost"] = sum(map(len, sent.values())) - result["packets"]
    result["violation-count"] = len(result["violations"])
    return result


def main(words):
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word and not word.startswith("/"))
    files = [word for word in words[1:] if word.split("=")[0] not in options]
    if words[0] == "way":
        return way(*files)
    judge = Judge(int(options.get("loss", 0)), float(options.get("timeout", TIMEOUT)))
    seen = [list(packets(path)) for path in files]
    # One capture may have been stopped before the other: nobody knows what it would have had beside the other's end.
    end = min((found[-1].time for found in seen if found), default=0)
    return judge.run(sorted((p for found in seen for p in found if p.time <= end), key=lambda p: p.time))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
