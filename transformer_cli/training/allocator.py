"""The process's memory: which buffers glibc keeps between steps, and how many compiled kernels oneDNN keeps."""

import ctypes
import os

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
LARGE = 2**30  # bytes
KERNELS = 256  # its default of 1,024 costs 0.4 GiB more in bf16, and no time is won: nearly every batch is a new shape


def keep_large_buffers() -> bool:
    """Tell glibc's malloc to serve up to 1 GiB from its heap and not to shrink that; False where there is no glibc.

    Else it hands each large buffer back to the kernel and gets it again zeroed, page by page.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20))
    return all(mallopt(name, value) for name, value in settings)


def keep_few_kernels() -> None:
    """Let oneDNN keep few kernels, unless the environment says how many. It reads this at its first kernel."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
