"""What an ELF file says of itself: the loader and libraries it needs; the modules that a kernel module depends on."""
import struct

LOAD, DYNAMIC, INTERP = 1, 2, 3
NEEDED, STRTAB = 1, 5


def needs(path):
    """(loader or None, set of library names) of a file; nothing when it is no 64-bit ELF file."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        return None, set()
    offset, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    loader, dynamic = None, []
    for kind, _, start, _, _, length in segments:
        if kind == INTERP:
            loader = data[start:start + length].rstrip(b"\0").decode()
        elif kind == DYNAMIC:
            dynamic = list(struct.iter_unpack("<QQ", data[start:start + length // 16 * 16]))
    table = next((value for tag, value in dynamic if tag == STRTAB), None)
    if table is None:
        return loader, set()
    for kind, _, start, address, _, length in segments:
        if kind == LOAD and address <= table < address + length:
            strings = table - address + start
            break
    else:
        return loader, set()
    text = lambda at: data[strings + at:data.index(b"\0", strings + at)].decode()
    return loader, {text(value) for tag, value in dynamic if tag == NEEDED}


def module_info(code):
    """The modules that a kernel module depends on, by its own .modinfo."""
    field = b"\0depends="
    at = code.find(field)
    if at < 0:
        return []
    value = code[at + len(field):code.index(b"\0", at + len(field))].decode()
    return [name.replace("-", "_") for name in value.split(",") if name]
