"""Runs a command under a system call filter that refuses some of what Docker's default profile refuses."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

#: Calls of x86-64 that Docker's default profile refuses to a container without capabilities, and that a
#: library for networking might make: mount, setns, unshare, kexec_load, process_vm_readv, _writev, kcmp, bpf,
#: userfaultfd, perf_event_open, open_by_handle_at, io_uring_setup, _enter and _register, pidfd_getfd.
REFUSED = [165, 308, 272, 246, 310, 311, 312, 321, 323, 298, 304, 425, 426, 427, 438]

#: clone3 is refused as if the kernel lacked it, because a filter does not see its flags.
CLONE3, CLONE = 435, 56
#: The flags of clone that make namespaces.
NAMESPACES = 0x7E020000

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, JUMP_IF_ANY, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE, LACK = 0x7FFF0000, 0x00050001, 0x00050026  # with EPERM and ENOSYS
NUMBER, FIRST_ARGUMENT = 0, 16


def install() -> None:
    """Confines this process and those that it starts."""
    program = [(LOAD, 0, 0, NUMBER)]
    program += [(JUMP_IF_EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, LACK)]
    program += [(JUMP_IF_EQUAL, 0, 3, CLONE), (LOAD, 0, 0, FIRST_ARGUMENT)]
    program += [(JUMP_IF_ANY, len(REFUSED) + 2, 0, NAMESPACES), (RETURN, 0, 0, ALLOW)]
    for position, number in enumerate(REFUSED):
        program.append((JUMP_IF_EQUAL, len(REFUSED) - position, 0, number))
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    install()
    os.execvp(sys.argv[1], sys.argv[1:])
