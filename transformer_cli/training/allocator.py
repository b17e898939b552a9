"""Keep large buffers between steps: glibc hands each back to the kernel and gets it again zeroed, page by page."""

import ctypes

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>
LARGE = 2**30  # bytes


def keep_large_buffers() -> bool:
    """Tell glibc's malloc to serve up to 1 GiB from its heap and not to shrink that; False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20))
    return all(mallopt(name, value) for name, value in settings)
