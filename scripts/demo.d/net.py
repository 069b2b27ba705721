"""Namespaces, cables and processes of the demo.

All of it lives in the demo's own mount, network and process namespaces (scripts/demo makes them), so nothing here has to
clean up: the kernel does, whatever happens.
"""
import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import time

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
MTU_UNDERLAY = 1600
MTU_TENANT = 1450


class Failure(Exception):
    """Something the demo needs did not work; the text tells the user what."""


def run(*args, check=True):
    done = subprocess.run(args, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if check and done.returncode != 0:
        raise Failure(f"'{' '.join(args)}' failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def private_run_folder():
    """An empty /run of our own: `ip netns`, DPDK and the sockets write there, and nowhere else."""
    run("mount", "-t", "tmpfs", "-o", "mode=755", "vswitch-demo", "/run")
    os.mkdir("/run/netns")


class Host:
    """A machine: one network namespace."""

    def __init__(self, name):
        self.name = name
        self.path = f"/run/netns/{name}"
        run("ip", "netns", "add", name)
        # Unasked-for IPv6 chatter would only blur the picture.
        run(*self.inside("sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"), check=False)
        self.ip("link set lo up")

    def inside(self, *args):
        return ["nsenter", f"--net={self.path}", "--", *args]

    def ip(self, line):
        return run("ip", "-n", self.name, *line.split())

    def run(self, *args, check=True):
        return run(*self.inside(*args), check=check)

    @contextlib.contextmanager
    def entered(self):
        """This process's network namespace is the host's for a while: sockets opened meanwhile belong there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(self.path, os.O_RDONLY)
        try:
            if _libc.setns(there, _CLONE_NEWNET) != 0:
                raise Failure(f"cannot enter {self.name}: {os.strerror(ctypes.get_errno())}")
            yield
        finally:
            _libc.setns(home, _CLONE_NEWNET)
            os.close(there)
            os.close(home)

    def udp(self, address, port):
        with self.entered():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((address, port))
        return sock

    def raw(self, interface):
        """Whole frames on an interface, in and out."""
        with self.entered():
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
            sock.bind((interface, 3))
        return sock

    def mac(self, interface):
        words = self.ip(f"-o link show {interface}").split()
        return words[words.index("link/ether") + 1]


def cable(a, a_name, b, b_name, mtu):
    """A veth pair between two hosts. Its ends must fill checksums in: a packet socket would pass half-made ones on."""
    run(
        "ip", "link", "add", a_name, "mtu", str(mtu), "netns", a.name, "type", "veth", "peer", "name", b_name, "mtu", str(mtu), "netns", b.name,
    )
    for host, name in ((a, a_name), (b, b_name)):
        host.run("ethtool", "-K", name, "tx", "off")
        host.ip(f"link set {name} up")


class Watch:
    """Counts the packets on an interface that match a tcpdump filter. The kernel does the counting; nothing is read."""

    _SOL_PACKET, _PACKET_STATISTICS, _SO_ATTACH_FILTER = 263, 6, 26

    def __init__(self, host, interface, expression):
        program = run("tcpdump", "-ddd", "-y", "EN10MB", "-s", "64", expression).split("\n")[1:]
        steps = [struct.pack("HBBI", *map(int, line.split())) for line in program if line]
        code = ctypes.create_string_buffer(b"".join(steps))
        with host.entered():
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        # First the filter, then the interface: not a packet is counted unfiltered.
        self.socket.setsockopt(socket.SOL_SOCKET, self._SO_ATTACH_FILTER, struct.pack("HL", len(steps), ctypes.addressof(code)))
        self.socket.bind((interface, 3))

    def stop(self):
        """Ends the count and returns it."""
        packets, _ = struct.unpack("II", self.socket.getsockopt(self._SOL_PACKET, self._PACKET_STATISTICS, 8))
        self.socket.close()
        return packets


class Process:
    """A program beside the story, with its output in a file. In a session of its own: Ctrl-C is the story's to handle."""

    def __init__(self, args, log):
        self.log = log
        with open(log, "w") as out:
            self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def output(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def running(self):
        return self.process.poll() is None

    def wait_output(self, text, limit=10):
        wait_for(f"'{text}' in {self.log}", lambda: text in self.output() or not self.running(), limit)

    def stop(self, with_signal=signal.SIGTERM, limit=15):
        """Asks it to end and returns its exit status; None when it had to be killed."""
        if self.running():
            self.process.send_signal(with_signal)
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def wait_for(what, ready, limit=10):
    end = time.monotonic() + limit
    while True:
        value = ready()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"waited {limit} s in vain for {what}")
        time.sleep(0.02)
