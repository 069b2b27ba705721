"""Raw frames in and out of the interfaces of any network namespace, for the scapy helpers beside it.

A socket belongs to the namespace it was opened in, so one process can inject at one host and watch at another.
"""
import ctypes
import os
import select
import socket
import struct
import time

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 3
_PACKET_OUTGOING = 4
_SOL_PACKET, _PACKET_AUXDATA = 263, 8
_TP_STATUS_VLAN_VALID = 1 << 4


def _enter(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        if _libc.setns(handle, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(handle)


class Wire:
    """One interface of one namespace: send() puts a frame on it, receive() returns the frames that came in on it."""

    def __init__(self, netns, interface):
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            _enter(f"/run/netns/{netns}")
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            self.socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            self.socket.bind((interface, _ETH_P_ALL))
        finally:
            _libc.setns(home, _CLONE_NEWNET)
            os.close(home)

    def send(self, frame):
        self.socket.send(bytes(frame))

    def receive(self, wanted=None, quiet=0.3, limit=5.0, match=None):
        """Frames that came in: returns once `wanted` matched, or none came for `quiet` seconds, or after `limit`."""
        frames, end, last = [], time.monotonic() + limit, time.monotonic()
        while time.monotonic() < end:
            if wanted is not None and len(frames) >= wanted:
                break
            ready, _, _ = select.select([self.socket], [], [], 0.02)
            if not ready:
                if wanted is None and time.monotonic() - last > quiet:
                    break
                continue
            frame, address = self._read()
            if address[2] == _PACKET_OUTGOING or (match and not match(frame)):
                continue
            last = time.monotonic()
            frames.append(frame)
        return frames

    def _read(self):
        """One frame as it was on the wire: the kernel takes the outermost VLAN tag out and tells it aside."""
        frame, extra, _, address = self.socket.recvmsg(65535, 128)
        for level, kind, data in extra:
            if level == _SOL_PACKET and kind == _PACKET_AUXDATA:
                status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
                if status & _TP_STATUS_VLAN_VALID:
                    frame = frame[:12] + struct.pack("!HH", tpid or 0x8100, tci) + frame[12:]
        return frame, address

    def drain(self):
        """Forgets what came in so far."""
        while select.select([self.socket], [], [], 0)[0]:
            self.socket.recv(65535)
