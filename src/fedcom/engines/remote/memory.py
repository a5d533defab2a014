"""Keep a server's memory as small as what it uses."""

import ctypes

_MMAP_THRESHOLD = -3  # the number of the setting in glibc's malloc.h
_LARGE = 2**20


def return_large_blocks() -> bool:
    """Let the process give blocks of a megabyte and more back to the system as soon as they are free.

    By default glibc keeps them, and small blocks that stay split their room, so that a server which decodes
    many replies takes several times the memory that one of them needs. False where there is no glibc.
    """
    try:
        return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE))
    except (OSError, AttributeError, TypeError):
        return False
