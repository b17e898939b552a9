"""`tfm` in true processes, without the seconds that importing torch takes each time: it forks one for each call.

A call is a line of JSON on stdin (`arguments`, `folder`, `environment`, `largest_file` in bytes or null). The answers
on stdout are two lines: at once the process's number, and when it has ended its exit code and what it said on stderr.
"""

import contextlib
import json
import os
import resource
import sys
from typing import Any


def serve() -> None:
    """Answer until stdin ends."""
    import sacrebleu  # noqa: F401
    import torch

    import transformer_cli.cli.app
    import transformer_cli.training.run  # noqa: F401

    torch.set_num_threads(1)  # a fork of a process whose threads have run could wait for them for ever
    for line in sys.stdin:
        said, stderr = os.pipe()
        process = os.fork()
        if process == 0:
            _run(json.loads(line), stderr)
        os.close(stderr)
        print(process, flush=True)
        _, status = os.waitpid(process, 0)
        os.set_blocking(said, False)  # workers that outlive it hold the other end
        text = b""
        with contextlib.suppress(BlockingIOError):
            text = os.read(said, 1 << 16)
        os.close(said)
        print(json.dumps([os.waitstatus_to_exitcode(status), text.decode()]), flush=True)


def _run(call: dict[str, Any], stderr: int) -> None:
    from transformer_cli.cli.app import main

    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, stream in enumerate((nothing, nothing, stderr)):
            os.dup2(stream, number)
        os.close(stderr)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.chdir(call["folder"])
        os.environ.update(call["environment"])
        if call["largest_file"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (call["largest_file"], resource.RLIM_INFINITY))
        sys.argv = ["tfm", *call["arguments"]]
        code = main()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
