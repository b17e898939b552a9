"""`tfm` for the shell blocks of the documentation, without the seconds that importing torch takes each time.

`serve` imports everything once and forks a process for each call; `run` stands for `tfm` in a shell: it hands its
arguments, folder, environment and the three streams to the server, passes signals on, and leaves with the exit code.
`start` does the same in a process of its own.
"""

import array
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

SMALLER = {
    "vocabulary.size": "900",
    "model": "{encoder_layers: 2, decoder_layers: 2, d_model: 16, heads: 4, d_ff: 32}",
    "training.batch_tokens": "300",
    "training.max_steps": "6",
    "training.warmup_steps": "2",
    "training.precision": "fp32",
    "training.log_every": "2",
    "training.save_every": "3",
    "training.keep_last": "5",
    "training.validate_every": "6",
    "training.validation_sentences": "4",
    "decoding.max_length_ratio": "0.1",
    "decoding.max_length_extra": "2",
    "data.workers": "0",
}
FAULTS = ("too_long", "length_ratio", "repetition", "identical_sides", "wrong_language")  # of hardly trained models
KEPT = ("model.heads=",)  # what a page changes to see what it does, whatever else is made small
INTERRUPTED = re.compile(r"checkpoints/(stopped|limited)")  # runs that a block interrupts: their first part is long
ABSENT = "data.train={source: no/such.de, target: no/such.en}"


def run(path: str, arguments: list[str]) -> int:
    """Have the server at `path` do it; imports nothing but what starts at once."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        call = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode("utf-8", "surrogateescape")
        streams = array.array("i", [0, 1, 2]).tobytes()
        connection.sendmsg([len(call).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        connection.sendall(call)
        answers = connection.makefile()
        process = int(answers.readline())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os.kill(process, number))
        return int(answers.readline() or 1)


def serve(path: str) -> None:
    """Answer calls until the process is ended."""
    import gc
    import io

    import matplotlib.figure
    import sacrebleu  # noqa: F401
    import torch

    import transformer_cli.evaluation.evaluate
    import transformer_cli.plots.attention
    import transformer_cli.plots.diagrams
    import transformer_cli.plots.training
    import transformer_cli.training.run  # noqa: F401

    for kind in ("png", "svg"):  # finds the fonts
        matplotlib.figure.Figure().savefig(io.BytesIO(), format=kind)
    gc.freeze()  # else each fork's first collection goes through all that was imported
    torch.set_num_threads(1)  # a fork of a process whose threads have run could wait for them for ever
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(64)
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(connection)
            connection.close()


def _answer(connection: socket.socket) -> None:
    code = 1
    try:
        header, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(12))
        streams = array.array("i")
        streams.frombytes(ancillary[0][2][:12])
        call = connection.makefile("rb").read(int.from_bytes(header, "big"))
        arguments, folder, environment = json.loads(call.decode("utf-8", "surrogateescape"))
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        connection.sendall(f"{os.getpid()}\n".encode())
        code = shortened(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    finally:
        connection.sendall(f"{code}\n".encode())
        os._exit(code)


def shortened(arguments: list[str]) -> int:
    """Run the command; one that needs the hub or a GPU until its config is validated.

    Training is shortened, so any translation is good enough to train on.
    """
    from transformer_cli.cli.app import main

    sys.argv = ["tfm", *arguments]
    command = arguments[0] if arguments else ""
    if command in ("train", "build-vocab") and "-h" not in arguments and "--help" not in arguments:
        if needs_the_hub(arguments):
            return _until_the_data(arguments)
        sys.argv += _changes(arguments)
    if command == "tune" and "-h" not in arguments and "--help" not in arguments:
        sys.argv += [*_changes(arguments), "--budget", "12steps", "--seeds", "0"]
    if command == "backtranslate":
        sys.argv += ["--min-length", "4", *(word for fault in FAULTS for word in ("--keep", fault))]
    if command == "demo":
        _shorten_demo()
    return main()


def needs_the_hub(arguments: list[str]) -> bool:
    """Whether a config is used as it is shipped that takes its data from the hub."""
    if any(argument.startswith("data.train=") for argument in arguments):
        return False
    configs = [argument for argument in arguments if argument.startswith("configs/")]
    return any("dataset:" in Path(path).read_text(encoding="utf-8") for path in configs)


def _changes(arguments: list[str]) -> list[str]:
    changes = {**SMALLER, "training.save_every": os.environ.get("SAVE_EVERY", SMALLER["training.save_every"])}
    out = next((argument for argument in arguments if INTERRUPTED.fullmatch(argument)), None)
    if out is not None and not os.path.exists(f"{out}/checkpoints.json"):
        changes["training.max_steps"] = "1000000"
    values = [f"{key}={value}" for key, value in changes.items()]
    return [
        word for value in [*values, *(one for one in arguments if one.startswith(KEPT))] for word in ("--set", value)
    ]


def _until_the_data(arguments: list[str]) -> int:
    """0 where the command gets as far as reading the data, or misses only the GPU that it names."""
    import contextlib
    import io

    from transformer_cli.cli.app import main

    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main([*arguments, "--set", ABSENT, "--out", "checkpoints/no-such"])
    reached = "no/such" in said.getvalue() or ("cuda" in said.getvalue() and "--device" in arguments)
    print(said.getvalue(), file=sys.stderr)
    return 0 if code == 2 and reached else 1


def _shorten_demo() -> None:
    """The demo on the few sentences at hand, and a model as small as the others."""
    import shutil

    from transformer_cli.config import load_config
    from transformer_cli.demo import run as demo

    def write_few(folder: Path) -> None:
        folder.mkdir(parents=True)
        for language in ("de", "en"):
            for split in ("train", "valid", "test"):
                shutil.copy(f"{split}.{language}", folder)
            shutil.copy(f"test.{language}", folder / f"test-unseen.{language}")

    changes = [f"{key}={value}" for key, value in SMALLER.items()]
    vars(demo)["write_corpus"] = write_few
    vars(demo)["load_config"] = lambda path: load_config(path, changes)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    if sys.argv[1] == "start":
        os.execv(sys.executable, [sys.executable, __file__, "started", *sys.argv[2:]])
    if sys.argv[1] == "started":
        sys.exit(shortened(sys.argv[2:]))
    sys.exit(run(sys.argv[2], sys.argv[3:]))
