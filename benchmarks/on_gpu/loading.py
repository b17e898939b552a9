"""How long training waits for batches that are really loaded."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from loading import Waited

from on_gpu.work import Work
from transformer_cli.config import Config, TrainingConfig
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import encode_corpus
from transformer_cli.data.loader import CorpusBatches, load_updates
from transformer_cli.decoding.devices import use_quick_attention
from transformer_cli.text.build import build_codecs
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective


def loading(work: Work) -> dict[str, Any]:
    """Real loading from an encoded corpus with 2 workers and pinned memory, beside the training step."""
    with tempfile.TemporaryDirectory(prefix="tfm-gpu-") as name:
        folder = Path(name)
        paths = [folder / "source", folder / "target"]
        for side, path in enumerate(paths):
            path.write_text("".join(" ".join(f"w{token}" for token in pair[side]) + "\n" for pair in work.pairs))
        files = {"source": str(paths[0]), "target": str(paths[1])}
        config = Config.model_validate(
            {
                "data": {"source_language": "de", "target_language": "en", "train": files, "valid": files},
                "vocabulary": {"tokenizer": "whitespace", "size": work.shape.vocabulary},
            }
        )
        text = TextCorpus(*map(str, paths))
        codecs, _ = build_codecs(config, text.pairs)
        corpus = encode_corpus(text, codecs, max_length=256, keep_text=False, cache_folder=folder)
        return {f"{workers} workers": wait(work, corpus, workers) for workers in (0, 2)}


def wait(work: Work, corpus: Any, workers: int) -> dict[str, Any]:
    loaded = load_updates(
        CorpusBatches(corpus, work.batch_tokens, seed=1, pad_to=8),
        workers=workers,
        pin=work.device.type == "cuda",
    )
    waited = Waited(loaded)
    use_quick_attention(work.device)
    objective = TranslationObjective(work.model(), work.shape.label_smoothing)
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-4)
    optimizer = build_optimizer(objective, config)
    steps = train_steps(objective, optimizer, Precision("bf16", work.device), config, waited)
    for _ in range(5):
        next(steps)
    began = time.perf_counter()
    for _ in range(work.updates):
        next(steps)
    seconds = time.perf_counter() - began
    steps.close()
    waits = waited.seconds[5:]
    return {
        "share of the time": round(sum(waits) / seconds, 4),
        "median, ms": round(1000 * statistics.median(waits), 3),
        "longest, ms": round(1000 * max(waits), 3),
        "an update, ms": round(1000 * seconds / work.updates, 2),
    }
