"""Tidy output for the demo: headings, facts with a mark, tables. Colour on a terminal only."""
import os
import sys

_COLOUR = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text, *codes):
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if _COLOUR else str(text)


def bold(text):
    return paint(text, "1")


def dim(text):
    return paint(text, "2")


def red(text):
    return paint(text, "31")


def blue(text):
    return paint(text, "34")


def green(text):
    return paint(text, "32")


def tenant(name):
    """A tenant's or machine's name in the tenant's colour."""
    return red(name) if name.startswith("red") else blue(name) if name.startswith("blue") else name


def heading(text):
    print(f"\n{bold(text)}\n{dim('─' * len(text))}", flush=True)


def note(text):
    print(dim(f"  {text}"), flush=True)


def fact(right, text):
    """One thing that must be true, with whether it is."""
    print(f"  {green('✓') if right else paint('✗ NOT SO:', '1', '31')} {text}", flush=True)


def block(text, limit=14):
    """Output of a command, indented, cut to a readable length."""
    lines = text.rstrip().splitlines()
    for line in lines[:limit]:
        print(f"    {line}")
    if len(lines) > limit:
        print(dim(f"    ... {len(lines) - limit} more lines"))
    sys.stdout.flush()


def table(header, rows):
    """Aligned columns; a cell is a text or a pair (plain text, painted text)."""
    plain = lambda cell: cell[0] if isinstance(cell, tuple) else str(cell)
    shown = lambda cell: cell[1] if isinstance(cell, tuple) else str(cell)
    widths = [max(len(plain(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for number, row in enumerate([header, *rows]):
        cells = [shown(cell) + " " * (width - len(plain(cell))) for cell, width in zip(row, widths)]
        line = "    " + "   ".join(cells).rstrip()
        print(dim(line) if number == 0 else line)
    sys.stdout.flush()
