"""Writes initramfs archives (cpio, "newc"): everything owned by root, no times, so that the same input gives the same bytes."""
from pathlib import PurePosixPath

FILE, FOLDER, LINK = 0o100000, 0o040000, 0o120000


class Archive:
    """An archive being written; parents of what is added come by themselves."""

    def __init__(self, path, append=False):
        self.out = open(path, "ab" if append else "wb")
        self.made = set()
        self.number = 0
        # The kernel takes several archives behind each other when each begins at a multiple of four bytes.
        self.out.write(b"\0" * (-self.out.tell() % 4))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self._entry("TRAILER!!!", 0, b"")
        self.out.close()

    def folder(self, path):
        if path in self.made or path in ("", "."):
            return
        self.folder(str(PurePosixPath(path).parent))
        self.made.add(path)
        self._entry(path, FOLDER | 0o755, b"")

    def file(self, path, content, mode):
        self.folder(str(PurePosixPath(path).parent))
        self._entry(path, FILE | mode, content)

    def link(self, path, target):
        self.folder(str(PurePosixPath(path).parent))
        self._entry(path, LINK | 0o777, target.encode())

    def _entry(self, path, mode, content):
        self.number += 1
        name = path.encode() + b"\0"
        links = 2 if mode & FOLDER else 1
        fields = [self.number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name), 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        self.out.write(head + b"\0" * (-len(head) % 4))
        self.out.write(content + b"\0" * (-len(content) % 4))
