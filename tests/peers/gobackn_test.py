"""Made-up captures for gobackn.py: right ones pass, and each deliberate fault is named by its rule. Run by apps_judge.rs."""
import os
import struct
import tempfile
import unittest

import gobackn
from roce import NAMES, ROCE, icrc

A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
TO_B, TO_A = 17, 34
MTU = 256
NUMBER = {name: number for number, name in enumerate(NAMES)}
SECOND = 1_000_000


def packet(name, psn, body=b"", back=False, qpn=None, opcode=None, flags=0, wrong=False):
    """A frame from A to B (or back) with its headers and ICRC; `body` is all that follows the BTH."""
    source, target = (B, A) if back else (A, B)
    qpn = (TO_A if back else TO_B) if qpn is None else qpn
    bth = bytes([NUMBER[name] if opcode is None else opcode, 0, 0xFF, 0xFF, flags]) + qpn.to_bytes(3, "big")
    bth += bytes([0x80 if name in ("SEND_ONLY", "SEND_LAST") else 0]) + (psn % gobackn.SPACE).to_bytes(3, "big")
    length = 8 + len(bth) + len(body) + 4
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 2, 20 + length, 7, 0x4000, 64, 17, 0, source, target)
    ip = head + struct.pack("!4H", 0xC001, ROCE, length, 0) + bth + body
    return bytes(12) + b"\x08\x00" + ip + (icrc(4, ip, 20) ^ wrong).to_bytes(4, "little")


def sends(psns, text=b"x"):
    return [packet("SEND_ONLY", psn, text * 8 + struct.pack("!Q", psn)) for psn in psns]


def ack(psn, syndrome=0):
    return packet("ACKNOWLEDGE", psn, bytes([syndrome, 0, 0, 1]), back=True)


def nak(psn):
    return ack(psn, 0x60)


def read(psn, length, address=4096):
    return packet("READ_REQUEST", psn, struct.pack("!QII", address, 1, length))


def response(position, psn, length, fill=b"r"):
    head = b"" if position == "MIDDLE" else bytes(4)
    return packet(f"READ_RESPONSE_{position}", psn, head + fill * length, back=True)


def cnp(flags=0x40, psn=0, body=bytes(16), qpn=TO_A):
    return packet("", psn, body, back=True, opcode=0x81, flags=flags, qpn=qpn)


class Files(unittest.TestCase):
    def write(self, frames, times=None):
        """A capture with a millisecond between frames, or with these times in microseconds."""
        handle, path = tempfile.mkstemp(suffix=".pcap")
        self.addCleanup(os.unlink, path)
        with os.fdopen(handle, "wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
            for number, frame in enumerate(frames):
                time = times[number] if times else number * 1000
                file.write(struct.pack("<IIII", time // SECOND, time % SECOND, len(frame), len(frame)) + frame)
        return path

    def judge(self, frames, *options, times=None):
        return gobackn.main(["judge", *options, self.write(frames, times)])

    def rules(self, frames, *options, times=None):
        return sorted({v["rule"] for v in self.judge(frames, *options, times=times)["violations"]})

    def assert_right(self, frames, *options, times=None):
        self.assertEqual(self.judge(frames, *options, times=times)["violations"], [])


class Right(Files):
    def test_requests_in_order_over_the_end_of_the_psns(self):
        first = gobackn.SPACE - 3
        self.assert_right([*sends(range(first, first + 3)), ack(first + 1), *sends(range(3)), ack(2)])

    def test_go_back_after_a_nak_repeats_all_behind_the_hole(self):
        frames = [*sends([5, 6, 8, 9]), nak(7), *sends([7, 8, 9, 10]), ack(10)]
        found = self.judge(frames, "loss=1")
        self.assertEqual(found["violations"], [])
        self.assertEqual((found["gaps"], found["naks"], found["repetitions"]), (1, 1, 3))

    def test_a_repetition_after_silence(self):
        self.assert_right([*sends([5, 6]), *sends([5, 6]), ack(6)], times=[0, 10, 70_000, 70_010, 70_020])

    def test_a_read_and_its_rest_asked_for_again(self):
        whole = [response("FIRST", 9, MTU), response("MIDDLE", 10, MTU), response("LAST", 11, 88)]
        self.assert_right([read(9, 2 * MTU + 88), *whole, *sends([12]), ack(12)])
        again = [response("FIRST", 10, MTU), response("LAST", 11, 88)]
        frames = [read(9, 2 * MTU + 88), whole[0], read(10, MTU + 88, 4096 + MTU), *again, *sends([12]), ack(12)]
        self.assert_right(frames, times=[0, 10, 80_000, 80_010, 80_020, 80_030, 80_040])

    def test_a_capture_of_one_direction_that_ends_sooner(self):
        there, back = self.write(sends([1, 2]), [0, 20]), self.write([ack(1), ack(2), ack(3)], [10, 20, 40])
        self.assertEqual(gobackn.main(["judge", there, back])["violations"], [])
        back = self.write([ack(1), ack(3)], [10, 15])
        self.assertEqual(gobackn.main(["judge", there, back])["violation-count"], 1)

    def test_notifications(self):
        found = self.judge([*sends([1, 2]), ack(2), cnp()])
        self.assertEqual((found["violations"], found["cnps"]), ([], 1))


class Faults(Files):
    def test_a_lost_packet(self):
        self.assertEqual(self.rules([*sends([1, 2, 4, 5]), ack(2)]), ["gap", "unrepaired"])

    def test_a_lost_packet_that_nobody_asks_for_again(self):
        self.assertEqual(self.rules([*sends([1, 2, 4, 5])], "loss=1"), ["unrepaired"])

    def test_an_answer_to_what_is_behind_a_hole(self):
        frames = [*sends([1, 2, 4]), ack(4), *sends([3, 4])]
        self.assertIn("early-answer", self.rules(frames, "loss=1"))

    def test_reordered_packets(self):
        self.assertIn("gap", self.rules([*sends([1, 3, 2, 4]), ack(4)]))

    def test_a_duplicate(self):
        self.assertEqual(self.rules([*sends([1, 2, 2, 3]), ack(3)]), ["unprovoked"])

    def test_a_duplicate_with_another_payload(self):
        frames = [*sends([1, 2]), *sends([2], b"y"), ack(2)]
        self.assertEqual(self.rules(frames, times=[0, 10, 90_000, 90_010]), ["changed"])

    def test_a_duplicate_with_another_operation(self):
        write = packet("WRITE_ONLY", 2, bytes(32))
        self.assertEqual(self.rules([*sends([1, 2]), write, ack(2)], times=[0, 10, 90_000, 90_010]), ["changed"])

    def test_a_wrong_icrc(self):
        self.assertEqual(self.rules([packet("SEND_ONLY", 1, bytes(8), wrong=True), ack(1)]), ["icrc"])

    def test_an_answer_to_what_was_not_sent(self):
        self.assertEqual(self.rules([*sends([1, 2]), ack(1), ack(3)]), ["early-answer"])
        self.assertEqual(self.rules([*sends([1, 2]), ack(1), nak(9)]), ["early-answer"])

    def test_positions_of_a_message(self):
        body = bytes(MTU)
        first, last = packet("SEND_FIRST", 1, body), packet("SEND_LAST", 3, body)
        self.assert_right([first, packet("SEND_MIDDLE", 2, body), last, ack(3)])
        self.assertEqual(self.rules([first, packet("WRITE_MIDDLE", 2, body), last, ack(3)]), ["opcode"])
        self.assertEqual(self.rules([first, *sends([2]), ack(2)]), ["opcode"])

    def test_read_responses(self):
        request, first, last = read(9, MTU + 88), response("FIRST", 9, MTU), response("LAST", 10, 88)
        self.assert_right([request, first, last])
        self.assertEqual(self.rules([*sends([8]), last, request, first, last]), ["early-answer"])
        self.assertEqual(self.rules([request, first, response("LAST", 10, 80)]), ["read-shape"])
        self.assertEqual(self.rules([request, first, response("MIDDLE", 10, MTU)]), ["read-shape"])
        self.assertEqual(self.rules([request, first, last, response("ONLY", 11, 8)]), ["early-answer"])
        self.assertEqual(self.rules([request, first, last, response("LAST", 10, 88, b"q")]), ["changed"])

    def test_a_read_response_left_out(self):
        frames = [read(9, 2 * MTU + 88), response("FIRST", 9, MTU), response("LAST", 11, 88)]
        self.assertEqual(self.rules(frames), ["gap"])

    def test_forms_of_notifications(self):
        before = [*sends([1, 2]), ack(2)]
        for frame in [cnp(flags=0x80), cnp(psn=1), cnp(body=bytes(15) + b"\x01"), cnp(body=bytes(12)), cnp(qpn=99)]:
            self.assertEqual(self.rules([*before, frame]), ["cnp"])


class Ways(Files):
    def way(self, sent, arrived):
        return gobackn.main(["way", self.write(sent), self.write(arrived)])

    def test_loss_is_counted_and_order_is_kept(self):
        found = self.way(sends([1, 2, 3, 2, 3]), sends([1, 3, 2, 3]))
        self.assertEqual((found["lost"], found["violations"]), (1, []))

    def test_what_a_network_must_not_do(self):
        for arrived in [sends([1, 3, 2]), sends([1, 2, 2, 3]), sends([1, 2], b"y"), sends([1, 2, 3, 4])]:
            self.assertEqual(self.way(sends([1, 2, 3]), arrived)["violation-count"], 1)


if __name__ == "__main__":
    unittest.main()
