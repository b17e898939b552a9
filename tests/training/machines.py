"""Machines for tests of training on several: each has a network, a host name and mounts of its own, all on this one.

Network namespaces, joined by a bridge in one more. They go with the shell that holds each, which ends with the test's
process: nothing is left behind, and nothing of this machine is changed. Needs Linux and root.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

HOLD = "mount --make-rprivate / && ip link set lo up && echo ready && read -r _"


class NotPossibleHere(Exception):
    """This machine allows no namespaces; says why."""


@dataclass(frozen=True)
class Machine:
    """One of them: `enter` before a command lets it run there."""

    number: int  # from 1
    shell: int  # the process that holds its namespaces
    switch: int  # the one that holds the bridge's

    @property
    def name(self) -> str:
        """Its host name, which all of them can resolve."""
        return f"machine{self.number}"

    def enter(self, folder: Path) -> list[str]:
        """Return the words before a command that is to run there, in this folder as that machine has it."""
        return [*_enter(self.shell), "--mount", "--uts", "env", f"--chdir={folder}"]

    def set_link(self, up: bool) -> None:
        """Plug its cable in, or pull it: packets are lost then, and nobody is told."""
        _run(*_enter(self.switch), "ip", "link", "set", f"port{self.number}", "up" if up else "down")


@contextmanager
def machines(count: int, mounts: Sequence[tuple[Sequence[Path], Path]] = ()) -> Iterator[list[Machine]]:
    """Give so many machines with a network between them.

    mounts: (folders, place): what each of them has at that place, which is there already. Raises `NotPossibleHere`.
    """
    for program in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(program) is None:
            raise NotPossibleHere(f"no {program} on this machine")
    with ExitStack() as stack:
        hosts = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        addresses = {number: f"10.77.0.{number}" for number in range(1, count + 1)}
        names = "".join(f"{address} machine{number}\n" for number, address in addresses.items())
        hosts.write_text("127.0.0.1 localhost\n" + names)
        switch = _hold(stack)
        _run(*_enter(switch), "ip", "link", "add", "bridge", "type", "bridge")
        _run(*_enter(switch), "ip", "link", "set", "bridge", "up")
        found = []
        for number, address in addresses.items():
            machine = Machine(number, _hold(stack), switch)
            cable = f"ip link add eth0 type veth peer name port{number} netns {switch}"
            commands = [cable, f"ip address add {address}/24 dev eth0", "ip link set eth0 up"]
            commands += [f"hostname {machine.name}", f"mount --bind {hosts} /etc/hosts"]
            commands += [f"mount --bind '{folders[number - 1]}' '{place}'" for folders, place in mounts]
            for command in commands:
                _run(*_enter(machine.shell), "--mount", "--uts", "sh", "-c", command)
            _run(*_enter(switch), "ip", "link", "set", f"port{number}", "master", "bridge", "up")
            found.append(machine)
        yield found


def _hold(stack: ExitStack) -> int:
    """Start a shell with namespaces of its own, which lasts as long as the stack; return its process."""
    words = ["unshare", "--net", "--mount", "--uts", "sh", "-c", HOLD]
    shell = stack.enter_context(
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )
    assert shell.stdout is not None
    assert shell.stderr is not None
    if shell.stdout.readline() != "ready\n":
        raise NotPossibleHere(shell.stderr.read().strip())
    stack.callback(shell.kill)
    return shell.pid


def _enter(process: int) -> list[str]:
    return ["nsenter", "--target", str(process), "--net"]


def _run(*words: str) -> None:
    ended = subprocess.run(words, capture_output=True, text=True)
    if ended.returncode:
        raise NotPossibleHere(f"{' '.join(words)}: {ended.stderr.strip()}")
