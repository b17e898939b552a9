"""SIGINT and SIGTERM: noted while training, acted on between two updates, when the state can be saved."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """A signal ended training; the state is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Stop:
    """Set by a signal, read after each update and between the parts of a validation."""

    signal_number: int | None = None


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Catch SIGINT and SIGTERM inside; the same signal a second time acts at once.

    Not so under torchrun: it passes on what a scheduler may have sent to every process already, and kills in the end.
    """
    stop = Stop()
    forwarded = "TORCHELASTIC_RUN_ID" in os.environ
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal_number = number
        if not forwarded:
            signal.signal(number, before[number])

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
