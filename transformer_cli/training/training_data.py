"""What training works on, made ready: vocabularies, encoded corpora, the plan; and the lines that describe it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformer_cli.build import count_parameters
from transformer_cli.codecs import load_codecs, model_codecs
from transformer_cli.config import Config
from transformer_cli.data.batching import BatchPlan
from transformer_cli.data.corpora import Corpus, open_corpus
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.encoded_cache import encode_corpus
from transformer_cli.data.loader import plan_corpus
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.publishing import verify
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs, vocabulary_files
from transformer_cli.training.fine_tuning import load_start_codecs
from transformer_cli.training.schedules import learning_rate
from transformer_cli.variants.guided_attention import AlignedCorpus


@dataclass(frozen=True)
class TrainingData:
    """All that a run reads."""

    codecs: Codecs
    train: EncodedCorpus
    valid: EncodedCorpus
    plan: BatchPlan  # of the first epoch; a later one may have a few batches more or fewer
    updates_an_epoch: int  # of the first epoch
    notes: list[str]  # what was dropped or sampled on the way, for the user to see


def load_or_build_codecs(
    config: Config, run: RunFolder | None, last_step: int | None, progress: bool
) -> tuple[Codecs, list[str]]:
    """The codecs of a run's last checkpoint, else those that `build-vocab` left there, else new ones; with notes.

    `run` None: there is nothing yet. A run that starts from a model (`training.init_from`) has that model's. Every file
    is held against its hash before it is read.
    """
    if run is not None and last_step is not None:
        return load_codecs(run.step_folder(last_step), config), []
    own = None
    if run is not None and run.vocab_path.exists():
        verify(run.vocab_path, [Path(name).name for name in vocabulary_files(config.vocabulary)])
        own = model_codecs(Codecs.load(run.path, config), config)
    if config.training.init_from is not None:
        return load_start_codecs(config, own)
    if own is not None:
        return own, []
    train = open_corpus(config.data.train, config.data.source_language, config.data.target_language)
    codecs, notes = build_codecs(config, train.pairs, progress=progress)
    return model_codecs(codecs, config), notes


def prepare_training_data(
    config: Config, codecs: Codecs, notes: list[str], progress: bool, ranks: int = 1
) -> TrainingData:
    """Encode the corpora and plan the first epoch.

    Writes nothing but the cache. Raises `UserError` for whatever is wrong with the data.
    """
    languages = config.data.source_language, config.data.target_language
    train, valid = (open_corpus(source, *languages) for source in (config.data.train, config.data.valid))
    training = config.training
    guide = training.guided_attention
    aligned = None if guide is None or guide.alignments is None else AlignedCorpus(train, guide.alignments)

    def encode(corpus: Corpus | AlignedCorpus, keep_text: bool) -> EncodedCorpus:
        return encode_corpus(
            corpus,
            codecs,
            max_length=config.data.max_length,
            keep_text=keep_text,
            linked=corpus is aligned,
            workers=config.data.workers,
            progress=progress,
        )

    encoded_valid = encode(valid, keep_text=True)
    encoded_train = encode(aligned or train, keep_text=bool(training.subword_sampling))
    plan = plan_corpus(
        encoded_train, batch_tokens=training.batch_tokens, seed=training.seed, epoch=0, pad_to=training.pad_to
    )
    updates = -(-len(plan) // (training.accumulation * ranks))
    return TrainingData(
        codecs, encoded_train, encoded_valid, plan, updates, [*(aligned or train).notes, *valid.notes, *notes]
    )


def describe_training(config: Config, material: TrainingData, model: Transformer) -> Iterator[str]:
    """A few lines on what will be done: data, vocabulary, model, batches, training."""
    shape, training, words = config.model, config.training, config.vocabulary
    yield f"data         {_count_pairs(material.train)}"
    if material.train.has_links:
        yield f"alignments   of {material.train.linked_pairs:,} pairs"
    yield f"validation   {_count_pairs(material.valid)}"
    kind = f"{words.algorithm} subwords" if words.tokenizer == "sentencepiece" else f"{words.tokenizer} tokens"
    source, target = len(material.codecs.source.vocabulary), len(material.codecs.target.vocabulary)
    sizes = f"{target:,} {kind}, shared" if words.shared else f"{source:,} source and {target:,} target {kind}"
    yield f"vocabulary   {sizes}"
    yield (
        f"model        {count_parameters(model):,} parameters: {shape.encoder_layers}+{shape.decoder_layers} layers, "
        f"d_model {shape.d_model}, {shape.heads} heads, d_ff {shape.d_ff}, {shape.norm}-norm, dropout {shape.dropout:g}"
    )
    padding = "{:.1%} of source and {:.1%} of target cells".format(*material.plan.padding())
    size = f"of at most {training.batch_tokens:,} tokens"
    yield f"batches      about {len(material.plan):,} an epoch, {size}; padding {padding}"
    limits = [f"{training.max_steps:,} steps" if training.max_steps else "", f"{training.max_epochs or 0:,} epochs"]
    limit = " or ".join(text for text in limits if text and not text.startswith("0 "))
    updates = f"{material.updates_an_epoch:,} updates an epoch"
    tokens = f"{material.plan.target_tokens / material.updates_an_epoch:,.0f} target tokens"
    top = max(1, training.warmup_steps)
    peak = learning_rate(training, shape.d_model, top)
    yield f"training     {limit}, about {updates} of {tokens} each"
    yield f"optimizer    {training.optimizer}, {training.schedule} schedule with its peak of {peak:.2e} at step {top:,}"


def _count_pairs(corpus: EncodedCorpus) -> str:
    left_out = {"with an empty side": corpus.left_out_empty, "over data.max_length": corpus.left_out_long}
    counts = ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
    return f"{len(corpus):,} pairs" + (f"; left out: {counts}" if counts else "")
