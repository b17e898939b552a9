"""Cables between the machines of tests/training/machines.py that are as slow, and as long, as one asks.

`tc` limits the rate. Where a packet is to arrive later, it goes through this process, which keeps it for that time: not
every kernel has netem. Each machine's end is a device called `slow0`, with the address 10.78.0.N.
"""

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TUN, NO_INFORMATION, WITH_HEADER = 0x0001, 0x1000, 0x4000  # the header says how to cut what is larger than a packet
CHECKSUM, TSO4 = 1, 2
CLONE_NEWNET = 0x40000000
HEADER, DESTINATION, LARGEST = 10, 10 + 16, 70_000  # bytes
# Windows for 10 Gbit/s over 20 ms, there and back, which do not begin anew after a pause.
KERNEL = {"tcp_rmem": "4096 131072 67108864", "tcp_wmem": "4096 65536 67108864", "tcp_slow_start_after_idle": "0"}


@contextmanager
def slow_links(shells: Sequence[int]) -> Iterator["Links"]:
    """Give links among the machines whose namespaces these processes hold; at first neither slow nor long."""
    links = Links([_open(shell) for shell in shells], shells)
    for number, shell in enumerate(shells, start=1):
        words = [f"echo {value} > /proc/sys/net/ipv4/{key}" for key, value in KERNEL.items()]
        words += [f"ip address add 10.78.0.{number}/24 dev slow0", "ip link set slow0 up txqueuelen 10000"]
        run_in(shell, "; ".join(words))
    thread = threading.Thread(target=links.forward, daemon=True)
    thread.start()
    try:
        yield links
    finally:
        links.ended = True
        thread.join()


def run_in(shell: int, command: str) -> None:
    """Run a shell's command in the network of a machine."""
    subprocess.run(["nsenter", "--target", str(shell), "--net", "sh", "-ec", command], check=True)


class Links:
    """All links at once; each direction of each has the same rate and delay."""

    def __init__(self, devices: list[int], shells: Sequence[int]) -> None:
        self.devices, self.shells = devices, shells
        self.delay, self.ended = 0.0, False  # seconds, one way

    def shape(self, rate: float | None, delay: float) -> None:
        """Set bits per second (None: as fast as this machine can) and seconds, one way."""
        self.delay = delay
        for shell in self.shells:
            run_in(shell, "tc qdisc del dev slow0 root 2>/dev/null || true")
            if rate is not None:
                burst = max(rate / 8 * 1e-3, 131_072)  # bytes: a millisecond, and the largest packet
                run_in(shell, f"tc qdisc add dev slow0 root tbf rate {rate:.0f}bit burst {burst:.0f} latency 100ms")

    def forward(self) -> None:
        """Hand each packet on to the machine that it is for, when it is time. Runs in a thread."""
        waiting: deque[tuple[float, int, bytes]] = deque()
        while not self.ended:
            late = waiting[0][0] - time.monotonic() if waiting else 0.1
            ready, _, _ = select.select(self.devices, [], [], max(late, 0.0))
            now = time.monotonic()
            for device in ready:
                packet = os.read(device, LARGEST)
                number = packet[DESTINATION + 3] if packet[HEADER] >> 4 == 4 else 0
                if 0 < number <= len(self.devices):
                    waiting.append((now + self.delay, self.devices[number - 1], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, device, packet = waiting.popleft()
                os.write(device, packet)


def _open(shell: int) -> int:
    """Make a device in a machine's network and return the end that is ours; this thread is in its network meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as here, open(f"/proc/{shell}/ns/net") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the machine's network")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"slow0", TUN | NO_INFORMATION | WITH_HEADER))
            fcntl.ioctl(device, TUNSETOFFLOAD, CHECKSUM | TSO4)
        finally:
            libc.setns(here.fileno(), CLONE_NEWNET)
    return device
