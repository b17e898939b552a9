"""`tfm serve`: models as an HTTP server that other programs can speak to."""

import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.options import option
from transformer_cli.cli.streams import check_output, note, warn
from transformer_cli.errors import UserError

GLOSSARY = "Terms that requests may ask for by the file's name (without .tsv). Repeatable."
SUGGESTIONS = "Append what POST /suggest sends to this JSONL file, which data.train reads; garbage is set aside."
WORKERS = "Processes that answer, each with its own models; CTranslate2's threads are divided among them."
KEYS = "Answer only who gives a key; a line is the SHA-256 of one. Read again when it changes."


class Server(opt.Options, panel="Server"):
    """Where it listens, and to whom."""

    host: str = option("--host HOST", "The address to listen on; 0.0.0.0 is every one of this machine.", "127.0.0.1")
    port: int = option("--port N", "The port; 0 takes a free one.", 5000, min=0, max=65535)
    workers: int = option("--workers N", WORKERS, 1, min=1, max=64)
    api_keys: Path | None = option("--api-keys FILE", KEYS)
    cors: list[str] | None = option("--cors ORIGIN", "Let web pages of this origin ask; '*' is any. Repeatable.")
    suggestions: Path | None = option("--suggestions FILE", SUGGESTIONS)
    glossaries: list[Path] | None = option("--glossary FILE", GLOSSARY)
    protect: bool = option("--protect/--no-protect", "Keep URLs, e-mails, placeholders and tags unchanged.", True)
    quiet: bool = opt.QUIET


class Limits(opt.Options, panel="Limits"):
    """What a request, and a client, may ask."""

    max_characters: int = option("--max-characters N", "Characters of a request.", 200_000, min=1)
    max_texts: int = option("--max-texts N", "Texts of a request.", 1_000, min=1)
    max_body: int = option("--max-body N", "Bytes of a request.", 4_000_000, min=1)
    max_seconds: float = option("--max-seconds N", "Seconds until a request is given up.", 60.0, min=0.001, max=86400.0)
    max_waiting: int = option("--max-waiting N", "Lines that may wait before each model.", 20_000, min=1)
    requests_per_minute: int | None = option(
        "--requests-per-minute N", "Requests of each key, or without keys of each address.", min=1
    )
    characters_per_minute: int | None = option("--characters-per-minute N", "Characters of each, likewise.", min=1)
    cache: int = option("--cache N", "Translations of lines that are kept in memory for each model.", 0, min=0)


def serve(
    context: typer.Context,
    models: Annotated[list[Path], typer.Argument(metavar="MODEL", help=opt.MODEL)],
    *,
    server: Server,
    limits: Limits,
    search: opt.Search,
    engine: opt.Engine,
) -> None:
    """Serve translations over HTTP, to LibreTranslate's and DeepL's clients too.

    \b
    tfm serve checkpoints/multi30k_de_en
    tfm serve checkpoints/my checkpoints/reverse --compute-type int8

    Then open http://localhost:5000 in a browser.

    For programs: curl localhost:5000/translate -d q=Hallo -d source=de -d target=en

    SIGHUP loads the models anew, without losing a request; SIGTERM ends it once what has begun is answered.
    """
    options = tuple(opt.translation_options(context, model) for model in models)
    from transformer_cli.serve import limits as limiting
    from transformer_cli.serve import server as serving
    from transformer_cli.serve import workers
    from transformer_cli.serve.models import Serving
    from transformer_cli.serve.suggestions import Suggestions
    from transformer_cli.serve.translating import Service

    named = {path.name.removesuffix(".gz").removesuffix(path.suffix): path for path in server.glossaries or ()}
    if len(named) < len(server.glossaries or ()):
        raise UserError("--glossary: two files have the same name; rename one of them")
    what = Serving(options, named, limiting.Limits(**vars(limits)))
    keys = None if server.api_keys is None else limiting.Keys(server.api_keys)
    suggestions = None if server.suggestions is None else Suggestions(server.suggestions)
    if suggestions is not None:
        check_output(suggestions.path, context.params, option="suggestions")
        check_output(suggestions.set_aside, context.params, option="suggestions")
    make = partial(Service, keys=keys, cors=tuple(server.cors or ()), suggestions=suggestions)
    with serving.open_socket(server.host, server.port) as bound:
        if keys is None and serving.is_public(server.host):
            warn(f"--host {server.host}: whoever can reach this machine may use it; give --api-keys FILE")
        host = f"[{server.host}]" if ":" in server.host else server.host
        ready = f"serving on http://{host}:{bound.getsockname()[1]}"
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to load anew
        if server.workers > 1:
            workers.serve(make, what, bound, ready, server.workers, quiet=server.quiet)
            return
        loaded = what.load()
        if not server.quiet:
            for line in loaded.lines():
                note(line)
        serving.run(make(what, loaded, limiting.Meter(what.limits)), bound, ready)
