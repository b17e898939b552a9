"""The processes that train one model together, what they send each other, and the signals that stop them.

`torchrun` starts them, and every rank makes the same calls in the same order. A process on its own is a group of one,
which sends nothing.
"""

import errno
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.rendezvous import rendezvous

from transformer_cli.decoding.devices import choose_device, rank_and_size
from transformer_cli.errors import UserError
from transformer_cli.model.torch_private import import_compiler

# How long a rank waits for what the others have to do: as long as the first may need to encode the corpus.
PATIENCE = timedelta(hours=12)
JOINING = timedelta(minutes=10)  # for them to be there; torchrun's own limit
# And for any sign of life from them. After 30 seconds without a network, TCP may need as long again to go on.
LOST_AFTER = timedelta(minutes=2)
TO_HEAR = timedelta(seconds=10)  # in which others, too, find out that they were started as different numbers
BEAT = 5.0  # seconds between signs of life
TO_REPORT = 15.0  # seconds in which a rank that is not waiting meets the loss by itself, and says more about it

Value = TypeVar("Value")


class Interrupted(Exception):
    """A signal ended training; the state is saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Stop:
    """SIGINT or SIGTERM, noted while training: read after each update and between the parts of a validation."""

    signal_number: int | None = None

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """Note SIGINT and SIGTERM inside; the same signal a second time acts at once.

        Not so under torchrun: it passes on what a scheduler may have sent to every process already, and kills in the
        end.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        forwarded = "TORCHELASTIC_RUN_ID" in os.environ

        def note(number: int, frame: FrameType | None) -> None:
            self.signal_number = number
            if not forwarded:
                signal.signal(number, before[number])

        before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class Ranks:
    """A process's place among those that train together, and the signal that it may have got."""

    rank: int = 0  # 0 writes, prints and saves
    count: int = 1
    stop: Stop = field(default_factory=Stop, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def gather(self, value: Value) -> list[Value]:
        """Return the value of every rank, by rank; small and picklable.

        This and all that sends something raise `ConnectionError` where another rank is gone.
        """
        if self.count == 1:
            return [value]
        values: list[Value | None] = [None] * self.count
        with _reporting_lost_ranks():
            distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]  # every place is filled now

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let rank 0 do it before the others begin, who find what it wrote; nothing may be sent meanwhile.

        Where it failed, the others raise `ConnectionError`.
        """
        if not self.is_main and not all(self.gather(True)):
            raise ConnectionAbortedError(errno.ECONNABORTED, "the main process ended with an error, which it reports")
        try:
            yield
        except BaseException:
            if self.is_main:
                with suppress(ConnectionError):
                    self.gather(False)
            raise
        if self.is_main:
            self.gather(True)

    def sum_gradients(
        self, parameters: Sequence[nn.Parameter], loss: Tensor, factor: float, narrow: torch.dtype | None = None
    ) -> Tensor:
        """Replace every `.grad` by the sum of factor × gradient over the ranks, and return the sum of the loss, ().

        One message for all; a rank that had nothing to do brings zeros. `narrow`: the type in which gradients are sent
        and summed, None: their own; the loss, which would lose digits, is a message of its own then.
        """
        if self.count == 1:
            return loss
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.to(gradients[0]).view(1)])
        flat[:-1] *= factor
        with _reporting_lost_ranks():
            if narrow is None:
                distributed.all_reduce(flat)
            else:
                sent = flat[:-1].to(narrow)
                distributed.all_reduce(sent)
                distributed.all_reduce(flat[-1:])
                flat[:-1] = sent
        *parts, total = torch.split(flat, [*(parameter.numel() for parameter in parameters), 1])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        return total.view(())

    def copy_weights(self, model: nn.Module) -> None:
        """Give every rank the weights of rank 0."""
        if self.count > 1:
            with _reporting_lost_ranks():
                for tensor in model.state_dict().values():
                    distributed.broadcast(tensor, src=0)

    def seed(self, seed: int) -> int:
        """Return a seed for what is to be random on each rank for itself: rank 0's is `seed`, as if it were alone.

        torch's generator for the CPU heeds 32 bits of it.
        """
        if self.is_main:
            return seed
        return int.from_bytes(hashlib.sha256(f"{seed} {self.rank}".encode()).digest()[:4])


SINGLE_PROCESS = Ranks()


@contextmanager
def _reporting_lost_ranks() -> Iterator[None]:
    """Turn what torch raises where a rank is gone into a `ConnectionError`, around what all do together."""
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).rpartition("] ")[2].split()).partition(". ")[0][:100]
        raise ConnectionResetError(
            errno.ECONNRESET,
            "another process of this training ended or cannot be reached, so this one ends too; its own message, or "
            f"torchrun's report, says why ({reason})",
        ) from error


def _meet(rank: int, count: int, backend: str) -> None:
    """Make one group of the processes, as soon as all are there.

    Raises `UserError` where they were started as different numbers of processes.
    """
    store, *_ = next(rendezvous(f"env://?rank={rank}&world_size=-1", timeout=JOINING))  # -1: it waits for nobody itself
    if rank == 0:
        store.set("count 0", str(count))
    for other in range(1, count) if rank == 0 else [0]:
        theirs = int(store.get(f"count {other}"))
        store.set(f"count {rank}", str(count))  # rank 0, in whose process the store may be, reads it last and may leave
        if theirs != count:
            if rank == 0:  # with this process the store ends, and whoever comes later would wait for it
                with suppress(RuntimeError):
                    store.wait([f"count {number}" for number in range(1, max(count, theirs))], TO_HEAR)
            raise UserError(
                f"this process was started as one of {count}, another one as one of {theirs}; end them, and start them "
                "with the same --nnodes and --nproc-per-node on every machine"
            )
    distributed.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)


class Pulse:
    """A thread that sends the other ranks signs of life, for as long as this process has not left them.

    Where one gives none for `LOST_AFTER` (it hangs, its machine is dead, the network is gone), every rank ends its
    process, which may be waiting for that one: else a GPU would idle for hours, and the run stay held.
    """

    def __init__(self, count: int) -> None:
        self.count, self._left = count, threading.Event()
        self._group = distributed.new_group(backend="gloo", timeout=LOST_AFTER)
        self._thread = threading.Thread(target=self._beat, name="tfm-pulse", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Return when all ranks want to leave."""
        self._left.set()
        self._thread.join()

    def _beat(self) -> None:
        leaving = torch.zeros(())
        try:
            with _reporting_lost_ranks():
                while leaving.item() < self.count:
                    self._left.wait(BEAT)
                    leaving.fill_(self._left.is_set())
                    self._group.allreduce([leaving]).wait()
        except ConnectionError as error:
            time.sleep(TO_REPORT)
            print(f"error: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(1)  # the main thread cannot be woken where it waits


@contextmanager
def join_ranks(device: str, compiles: bool = False) -> Iterator[tuple[Ranks, torch.device]]:
    """Give this process's place and device, as torchrun's environment says; one on its own without torchrun.

    compiles: whether the compiler will be wanted.

    Raises `UserError` where the device is not there for every process, or the processes were not started as parts of
    the same job, and `ConnectionError` where one does not come.
    """
    rank, count = rank_and_size()
    if count == 1 or "RANK" not in os.environ:
        yield Ranks(), choose_device(device)
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if ":" in device:
        raise UserError(f"--device {device}: torchrun gives each process a device of its own; say cuda or cpu")
    chosen = choose_device(device)
    if chosen.type == "cuda":
        processes, devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
        if processes > devices:
            raise UserError(f"{processes} processes here, but {devices} GPUs: give torchrun --nproc-per-node {devices}")
        chosen = choose_device(f"cuda:{local}")
        torch.cuda.set_device(chosen)
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    if compiles:
        # After the group is there, importing it would keep the group's threads alive past its end, and now and then one
        # of them aborts a process that is about to leave.
        import_compiler()
    with _reporting_lost_ranks():
        _meet(rank, count, backend)
        pulse = Pulse(count)
    try:
        yield Ranks(rank, count), chosen
    except Interrupted:
        pulse.leave()
        distributed.destroy_process_group()
        raise
    pulse.leave()
    # Not after an error: the others would miss this process, and the job end, before it has said what was wrong.
    distributed.destroy_process_group()
