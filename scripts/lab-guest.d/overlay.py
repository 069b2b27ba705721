"""The applications of the larger image: a second archive behind the first, which the kernel unpacks over it.

lab-guest.d/apps/ lists packages, programs, whole trees and modules; programs of our own are beside the lists: NAME.c is
compiled against the unpacked packages (and linked with MPI where it calls it), NAME.sh goes in as the program NAME.
"""
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import cpio
from problem import Problem

NAME = "apps"
PARTS = Path(__file__).resolve().parent / NAME
# What its build takes from the machine, and the package that has it.
TOOLS = {"gcc": "gcc"}
# Where MPI's own programs find its headers.
HEADERS = "usr/lib/x86_64-linux-gnu/openmpi/include"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def listed(path):
    """The lines of a list without comments."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    return [line for line in lines if line]


def programs(parts, root, find):
    """Path in the guest -> file of the unpacked packages, of a folder's list of programs."""
    found = {}
    for line in listed(parts / "programs"):
        name, _, path = (word.strip() for word in line.partition("="))
        source = root / path if path else find(root, name)
        if source is None or not source.exists():
            raise Problem(f"no package has the program {name}: name its package in {parts / 'packages'}")
        found[f"bin/{name}"] = source
    return found


def files(root, scratch, find):
    """Path in the guest -> file here of programs and trees; libraries come after."""
    found = programs(PARTS, root, find)
    wanted = listed(PARTS / "trees")
    left_out = [path.removeprefix("!") for path in wanted if path.startswith("!")]
    for path in (path for path in wanted if not path.startswith("!")):
        source = root / path
        if not source.exists():
            raise Problem(f"no package has {path}, which {PARTS / 'trees'} asks for")
        inside = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
        inside = {str(p.relative_to(root)): p for p in inside}
        found.update({name: p for name, p in inside.items() if not any(fnmatch(name, out) for out in left_out)})
    for source in sorted(PARTS.glob("*.c")):
        found[f"bin/{source.stem}"] = compiled(source, root, scratch)
    for source in sorted(PARTS.glob("*.sh")):
        found[f"bin/{source.stem}"] = source
    return found


def compiled(source, root, scratch):
    out = scratch / source.stem
    done = subprocess.run(
        ["gcc", "-O1", "-Wall", "-Wextra", "-I", root / HEADERS, source, "-o", out, "-L", root / LIBRARIES,
         "-Wl,--allow-shlib-undefined,--as-needed", "-l:libmpi.so.40"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Problem(f"{source.name} does not compile:\n{done.stderr}")
    return out


def write(out, found, modules):
    """Appends the second archive to the initramfs `out`; `modules` are those of either archive, in the order of loading."""
    with cpio.Archive(out, append=True) as archive:
        for path, source in sorted(found.items()):
            program = path.startswith("bin/") or ".so" in path
            archive.file(path, source.read_bytes(), 0o755 if program else 0o644)
        for name, code in modules:
            archive.file(f"lib/modules/{name}.ko", code, 0o644)
        archive.file("lib/modules/order", "".join(f"{name}\n" for name, _ in modules).encode(), 0o644)
