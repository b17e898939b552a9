"""What training reads: vocabularies, encoded corpora, the plan of batches; and the lines that describe it.

`run` and `dry_run` make it; it is the same whether a run starts or resumes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from transformer_cli.build import count_parameters
from transformer_cli.config import Config, Source, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.batching import BatchPlan
from transformer_cli.data.corpora import Corpus
from transformer_cli.data.encoded import EncodedCorpus, LinkedCorpus, encode_corpus
from transformer_cli.data.held_out import Corpora, HeldOut, tagged
from transformer_cli.data.loader import START, Augmentation, CorpusBatches, Position, UpdateBatches, load_updates
from transformer_cli.data.mixture import Mixture
from transformer_cli.data.noise import noise_of
from transformer_cli.data.quality.languages import LanguageIdentifier
from transformer_cli.model.transformer import Transformer
from transformer_cli.text.build import vocabulary_warnings
from transformer_cli.text.codec import Codecs
from transformer_cli.training.distributed import SINGLE_PROCESS, Ranks
from transformer_cli.training.schedules import R_DROP_RISES, decay, learning_rate
from transformer_cli.variants.guided_attention import AlignedCorpus


@dataclass(frozen=True)
class TrainingData:
    """All that a run reads."""

    config: Config
    codecs: Codecs
    train: EncodedCorpus | Mixture
    valid: EncodedCorpus
    held_out: HeldOut | None  # `valid` as text, where data.valid is not set
    plan: BatchPlan  # of the first epoch; a later one may have a few batches more or fewer
    updates_an_epoch: int  # of the first epoch
    notes: list[str]  # what was dropped or sampled on the way, for the user to see
    languages: LanguageIdentifier | None = None  # where a run begins, and they can be told apart

    @property
    def total_steps(self) -> int:
        """Where training ends at the latest: max_steps, or the updates of max_epochs, whichever comes first."""
        training = self.config.training
        limits = [training.max_steps, training.max_epochs and training.max_epochs * self.updates_an_epoch]
        return min(limit for limit in limits if limit is not None)

    def last_step(self, decay_from: int | None) -> int:
        """Return the step after which training ends at the latest, if its rate falls since `decay_from`."""
        if decay_from is None:
            return self.total_steps
        return min(self.total_steps, decay(self.config.training, decay_from)[1])

    @property
    def batches(self) -> CorpusBatches:
        """The training corpus in batches, segmentations and noise drawn anew where the config says so."""
        training = self.config.training
        drawn = augmentation(self.config, self.codecs)
        return CorpusBatches(self.train, training.batch_tokens, training.seed, training.pad_to, drawn)

    def updates(
        self, start: Position = START, workers: int = 0, pin: bool = False, ranks: Ranks = SINGLE_PROCESS
    ) -> Iterator[UpdateBatches]:
        """Yield this process's batches of each update, from a place in the plan on; as `load_updates` does."""
        return load_updates(
            self.batches,
            accumulation=self.config.training.accumulation,
            start=start,
            rank=ranks.rank,
            ranks=ranks.count,
            workers=workers,
            pin=pin,
        )

    def costliest_batch(self) -> Batch:
        """Return the batch of the first epoch that takes the most memory, as large as it can become."""
        return self.batches.largest(self.plan[self.plan.costliest()])


def augmentation(config: Config, codecs: Codecs) -> Augmentation | None:
    """Return what a config draws anew in each epoch; None: nothing."""
    strength, noise = config.training.subword_sampling, noise_of(config)
    return Augmentation(codecs, config.data.max_length, strength, noise) if strength or noise else None


def prepare_training_data(
    config: Config, corpora: Corpora, codecs: Codecs, notes: list[str], progress: bool, ranks: int = 1
) -> TrainingData:
    """Encode the corpora and plan the first epoch.

    Writes nothing but the cache. Raises `UserError` for whatever is wrong with the data.
    """
    training, data, guide = config.training, config.data, config.training.guided_attention
    alignments = guide.alignments if guide is not None else None

    def encode(corpus: Corpus | LinkedCorpus, keep_text: bool, linked: bool = False) -> EncodedCorpus:
        return encode_corpus(
            corpus,
            codecs,
            max_length=data.max_length,
            keep_text=keep_text,
            linked=linked,
            workers=data.workers,
            progress=progress,
        )

    drawn = augmentation(config, codecs)
    encoded_valid = encode(tagged(corpora.valid, corpora.valid_tag), keep_text=True)
    encoded: list[EncodedCorpus] = []
    for source in corpora.sources:  # a file of alignments has all lines of the only source
        corpus = source.select(corpora.held_out, AlignedCorpus(source.whole, alignments) if alignments else None)
        encoded.append(encode(tagged(corpus, source.tag), drawn is not None, linked=alignments is not None))
        notes = [*corpus.notes, *notes]
    weights = [source.weight for source in corpora.sources]
    train = encoded[0] if weights == [1.0] else Mixture(encoded, weights)
    plan = CorpusBatches(train, training.batch_tokens, training.seed, training.pad_to, drawn).plan(epoch=0)
    updates = -(-len(plan) // (training.accumulation * ranks))
    notes = [*corpora.notes, *corpora.valid.notes, *notes]
    return TrainingData(config, codecs, train, encoded_valid, corpora.held_out, plan, updates, notes)


def describe_training(data: TrainingData, model: Transformer, decay_from: int | None) -> Iterator[str]:
    """Yield a few lines on what will be done: data, vocabulary, model, batches, training."""
    config, plan = data.config, data.plan
    shape, training, words = config.model, config.training, config.vocabulary
    yield f"data         {_count_pairs(data.train)}"
    if isinstance(data.train, Mixture):
        sources = zip(config.data.sources.items(), data.train.corpora, strict=True)
        yield from (f"             {_describe_source(key, source, len(pairs))}" for (key, source), pairs in sources)
    elif data.train.has_links:
        yield f"alignments   of {data.train.linked_pairs:,} pairs"
    if training.noise is not None:
        as_written = f"; {plan.too_long:,} more stay as written, for they would be too long" if plan.too_long else ""
        yield f"noise        {plan.recased:,} sources of the first epoch in capitals or title case{as_written}"
    yield f"validation   {_count_pairs(data.valid)}"
    kind = f"{words.algorithm} subwords" if words.tokenizer == "sentencepiece" else f"{words.tokenizer} tokens"
    source, target = len(data.codecs.source.vocabulary), len(data.codecs.target.vocabulary)
    sizes = f"{target:,} {kind}, shared" if words.shared else f"{source:,} source and {target:,} target {kind}"
    yield f"vocabulary   {sizes}"
    yield from vocabulary_warnings(data.codecs, words)
    yield (
        f"model        {count_parameters(model):,} parameters: {shape.encoder_layers}+{shape.decoder_layers} layers, "
        f"d_model {shape.d_model}, {shape.heads} heads, d_ff {shape.d_ff}, {shape.norm}-norm, dropout {shape.dropout:g}"
        + (f" (rises until step {training.dropout_warmup_steps:,})" if training.dropout_warmup_steps else "")
        + (f", R-Drop{_rise_of_r_drop(training, data.total_steps)}" if training.r_drop else "")
    )
    padding = "{:.1%} of source and {:.1%} of target cells".format(*plan.padding())
    size = f"of at most {training.batch_tokens:,} tokens"
    yield f"batches      about {len(plan):,} per epoch, {size}; padding {padding}"
    counts = {"steps": training.max_steps, "epochs": training.max_epochs}
    limit = " or ".join(f"{count:,} {unit}" for unit, count in counts.items() if count)
    if training.patience:
        until = f"{training.patience:,} validations bring no improvement"
        ends = f"fewer where {until}"
        if training.schedule == "wsd":
            ends = f"the rate falls once {until}, at the latest from step {decay(training, None)[0]:,}"
        limit = f"at most {limit} ({ends})"
    if decay_from is not None:
        limit = f"{data.last_step(decay_from):,} steps (the rate falls since step {decay_from:,})"
    tokens = f"{plan.target_tokens / data.updates_an_epoch:,.0f} target tokens"
    yield f"training     {limit}, about {data.updates_an_epoch:,} updates per epoch of {tokens} each"
    top = max(1, training.warmup_steps)
    peak = learning_rate(training, shape.d_model, top)
    yield f"optimizer    {training.optimizer}, {training.schedule} schedule with its peak of {peak:.2e} at step {top:,}"
    if training.schedule in ("cosine", "wsd") and data.total_steps < (training.max_steps or 0):
        yield (
            f"warning      max_epochs = {training.max_epochs:,} ends training at step {data.total_steps:,}, but the "
            f"rate of its {training.schedule} schedule only comes down by max_steps = {training.max_steps:,}; set both "
            "alike"
        )


def _describe_source(key: str, source: Source, pairs: int) -> str:
    tag = f", with {source.tag} before them" if source.tag is not None else ""
    return f"{key}: {pairs:,} pairs, each {source.weight:g} times in an epoch{tag}"


def _rise_of_r_drop(training: TrainingConfig, steps: int) -> str:
    """Return when R-Drop is there in so many steps, if not all the time."""
    if not training.dropout_warmup_steps:
        return ""
    first, last = (training.dropout_warmup_steps * rise for rise in R_DROP_RISES)
    if steps <= first:
        return f" (begins after step {first:,}, so never: lower dropout_warmup_steps)"
    return f" (rises from step {first:,} until {last:,})"


def _count_pairs(corpus: EncodedCorpus | Mixture) -> str:
    left_out = {"with an empty side": corpus.left_out_empty, "over data.max_length": corpus.left_out_long}
    counts = ", ".join(f"{count:,} {why}" for why, count in left_out.items() if count)
    return f"{len(corpus):,} pairs" + (f"; left out: {counts}" if counts else "")
