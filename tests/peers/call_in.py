"""Has a thread of another process make system calls, as a debugger would, and says what each returned (ptrace(2), on x86-64).

call_in.py PID NUMBER,ARGUMENT,... [NUMBER,ARGUMENT,...]...

The thread has to be inside a system call: the instruction that brought it there is the one that it is led back to. Debuggers do the
same with a breakpoint, but write all registers, which Debian 12's cannot on processors with AMX.
"""

import ctypes
import os
import sys

ATTACH, DETACH, GETREGS, SETREGS, SINGLESTEP, PEEKTEXT = 16, 17, 12, 13, 9, 1
# struct user_regs_struct of sys/user.h, in its order.
NAMES = (
    "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs"
).split()
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
SYSCALL = 0x050F


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in NAMES]


libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, pid, address=0, data=0):
    ctypes.set_errno(0)
    result = libc.ptrace(request, pid, address, data)
    if ctypes.get_errno() != 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}: {os.strerror(ctypes.get_errno())}")
    return result


def call(pid, before, number, arguments):
    registers = Registers.from_buffer_copy(before)
    registers.rip, registers.rax = before.rip - 2, number
    # No call that was interrupted, so that the kernel begins none again.
    registers.orig_rax = 2**64 - 1
    for name, value in zip(ARGUMENTS, arguments):
        setattr(registers, name, value % 2**64)
    ptrace(SETREGS, pid, 0, ctypes.addressof(registers))
    ptrace(SINGLESTEP, pid)
    os.waitpid(pid, 0)
    ptrace(GETREGS, pid, 0, ctypes.addressof(registers))
    return ctypes.c_longlong(registers.rax).value


def main():
    pid = int(sys.argv[1])
    ptrace(ATTACH, pid)
    os.waitpid(pid, 0)
    before = Registers()
    try:
        ptrace(GETREGS, pid, 0, ctypes.addressof(before))
        if ptrace(PEEKTEXT, pid, before.rip - 2) & 0xFFFF != SYSCALL:
            raise SystemExit("the thread is not inside a system call")
        for words in sys.argv[2:]:
            number, *arguments = (int(word, 0) for word in words.split(","))
            print(f"{number} = {call(pid, before, number, arguments)}")
        ptrace(SETREGS, pid, 0, ctypes.addressof(before))
    finally:
        ptrace(DETACH, pid)


main()
