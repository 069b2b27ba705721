"""Writes initramfs archives (cpio, "newc"): everything owned by root unless a whole tree is taken, no times, so that the same
input gives the same bytes."""
import os
import stat
from fnmatch import fnmatch
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

    def tree(self, root, left_out):
        """All of a folder as it is, with owners, links and devices, but for the paths that match one of `left_out`."""
        todo = [root]
        while todo:
            for found in sorted(os.scandir(todo.pop()), key=lambda entry: entry.name):
                path, facts = os.path.relpath(found.path, root), found.stat(follow_symlinks=False)
                if any(fnmatch(path, pattern) for pattern in left_out):
                    continue
                content = b""
                if stat.S_ISDIR(facts.st_mode):
                    self.made.add(path)
                    todo.append(found.path)
                elif stat.S_ISLNK(facts.st_mode):
                    content = os.readlink(found.path).encode()
                elif stat.S_ISREG(facts.st_mode):
                    with open(found.path, "rb") as file:
                        content = file.read()
                device = (os.major(facts.st_rdev), os.minor(facts.st_rdev))
                self._entry(path, facts.st_mode, content, (facts.st_uid, facts.st_gid), device)

    def _entry(self, path, mode, content, owner=(0, 0), device=(0, 0)):
        self.number += 1
        name = path.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = [self.number, mode, *owner, links, 0, len(content), 0, 0, *device, len(name), 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        self.out.write(head + b"\0" * (-len(head) % 4))
        self.out.write(content + b"\0" * (-len(content) % 4))
