"""A kernel package unpacked: its image uncompressed (which boots faster under emulation), its modules in order of loading."""
import gzip
import lzma
import shutil
import struct
import subprocess

import elf
from problem import Problem

XZ, GZIP, ZSTD = b"\xfd7zXZ\0", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def plain(data, what):
    """Undoes the compression of a kernel image or module."""
    if data.startswith(XZ):
        return lzma.LZMADecompressor().decompress(data)
    if data.startswith(GZIP):
        return gzip.decompress(data)
    if data.startswith(ZSTD):
        if not shutil.which("zstd"):
            raise Problem(f"{what} is compressed with zstd: install the package zstd")
        return subprocess.run(["zstd", "-dc"], input=data, capture_output=True).stdout
    if data.startswith(b"\x7fELF"):
        return data
    raise Problem(f"{what} is compressed in a way that is not known here (begins with {data[:6].hex()})")


class Tree:
    """The files of one kernel."""

    def __init__(self, root):
        folder = next((f for f in (root / "lib/modules", root / "usr/lib/modules") if f.is_dir()), None)
        releases = sorted(f.name for f in folder.iterdir()) if folder else []
        if len(releases) != 1:
            raise Problem(f"the kernel package holds modules of {releases or 'no kernel'}")
        self.release = releases[0]
        self.folder = folder / self.release
        self.image = root / "boot" / f"vmlinuz-{self.release}"
        self.modules = {}
        for path in self.folder.rglob("*.ko*"):
            self.modules[path.name.split(".ko")[0].replace("-", "_")] = path
        builtin = self.folder / "modules.builtin"
        lines = builtin.read_text().split() if builtin.exists() else []
        self.builtin = {line.rsplit("/", 1)[-1].removesuffix(".ko").replace("-", "_") for line in lines}

    def uncompressed(self):
        """The kernel proper out of its self-extracting image (Linux' x86 boot protocol: payload_offset, payload_length)."""
        data = self.image.read_bytes()
        if data[0x202:0x206] != b"HdrS":
            raise Problem(f"{self.image.name} is no x86 kernel image")
        sectors = data[0x1f1] or 4
        offset, length = struct.unpack_from("<II", data, 0x248)
        start = (sectors + 1) * 512 + offset
        return plain(data[start:start + length], self.image.name)

    def load_order(self, wanted):
        """(name, code) of the modules and of all that they depend on, each behind its own dependencies."""
        order = {}

        def take(name, user):
            if name in order or name in self.builtin:
                return
            if name not in self.modules:
                raise Problem(f"kernel {self.release} has no module {name}, which {user} asks for")
            code = plain(self.modules[name].read_bytes(), f"module {name}")
            for other in elf.module_info(code):
                take(other, name)
            order[name] = code

        for name in wanted:
            take(name.replace("-", "_"), "lab-guest.d/modules")
        return list(order.items())
