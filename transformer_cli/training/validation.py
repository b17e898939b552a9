"""How good the model is now: the loss over the validation set, BLEU and chrF of greedy translations of its start.

`training.run` asks it every `validate_every` steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from transformer_cli.config import Config
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.loader import plan_corpus, read_batch
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.torch_engine import TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.evaluation.metrics import corpus_metric
from transformer_cli.text.codec import Codecs
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.precision import Precision

SAMPLES = 3  # translations shown


@dataclass(frozen=True)
class Sample:
    """One validation sentence with its translation, to look at."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Validation:
    """What one validation found."""

    loss: float  # label-smoothed, nats a target token
    perplexity: float  # exp(-log p a target token), without smoothing
    bleu: float
    chrf: float
    samples: list[Sample]

    def value(self, metric: str) -> float:
        """The figure that `training.best_metric` names, turned so that higher is better."""
        return {"bleu": self.bleu, "chrf": self.chrf, "loss": -self.loss}[metric]


class Validator:
    """Validates one model again and again on the same sentences."""

    def __init__(
        self,
        objective: TranslationObjective,
        codecs: Codecs,
        config: Config,
        corpus: EncodedCorpus,
        precision: Precision,
    ) -> None:
        self.objective, self.config, self.corpus, self.precision = objective, config, corpus, precision
        count = min(len(corpus), config.training.validation_sentences)
        texts = [corpus.texts(pair) for pair in range(count)]
        self.sources = [source for source, _ in texts]
        self.references = [target for _, target in texts]
        self.translator = Translator(TorchEngine(objective.model, precision.device), codecs, config)

    def validate(self) -> Validation:
        """Leaves the random state alone, and the model in evaluation mode."""
        self.objective.eval()
        loss, likelihood = self._losses()
        options = SearchOptions.from_config(self.config.decoding, method="greedy")
        results = self.translator.translate_batch(self.sources, options, alignments=False)
        translations = [result.text for result in results]
        language = self.config.data.target_language
        return Validation(
            loss=loss,
            perplexity=math.exp(min(likelihood, 700.0)),
            bleu=corpus_metric("bleu", translations, [self.references], language).score,
            chrf=corpus_metric("chrf", translations, [self.references], language).score,
            samples=self._samples(translations),
        )

    @torch.inference_mode()
    def _losses(self) -> tuple[float, float]:
        """Smoothed loss and -log p, per target token of the whole set."""
        plan = plan_corpus(self.corpus, batch_tokens=self.config.training.batch_tokens, seed=0, epoch=0)
        smoothed, likelihood, tokens = 0.0, 0.0, 0
        for number in range(len(plan)):
            batch = read_batch(self.corpus, plan[number]).to(self.precision.device)
            with self.precision.autocast():
                loss = self.objective(batch)
            smoothed += float(loss.smoothed)
            likelihood += float(loss.likelihood)
            tokens += batch.target_tokens
        return smoothed / tokens, likelihood / tokens

    def _samples(self, translations: Sequence[str]) -> list[Sample]:
        chosen = [(2 * number + 1) * len(self.sources) // (2 * SAMPLES) for number in range(SAMPLES)]
        return [Sample(self.sources[i], self.references[i], translations[i]) for i in dict.fromkeys(chosen)]
