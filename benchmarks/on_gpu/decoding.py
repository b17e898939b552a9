"""Decoding: tfm's torch engine against Hugging Face's `generate`.

Random weights of one shape; `</s>` is never said, so that every output has the same length. Both get the same ids.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from batches import BOS, EOS, PAD
from contenders.matmul import synchronise
from contenders.train_tfm import model_config

from on_gpu.profiling import find_waits, profile_kernels
from on_gpu.work import Work
from transformer_cli.build import build_model
from transformer_cli.decoding.engines.protocol import SearchBatch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.search_options import SearchOptions

BEAMS = 5
GOAL = 3.0  # times Hugging Face's tokens per second, the faster of its ways
NEVER = -1e4  # what the specials' logits get added

Sources = list[list[int]]
Decode = Callable[[Sources, int, int], list[int]]  # sources, beams, output length → lengths of the best outputs

HUGGING_FACE: dict[str, dict[str, Any]] = {
    "Hugging Face, bf16": {},
    "Hugging Face, bf16, static cache": {"cache_implementation": "static", "disable_compile": True},
}
COMPILED = "Hugging Face, bf16, static cache, compiled"


def tfm(work: Work, dtype: torch.dtype) -> Decode:
    """The torch engine, as it is for a model that was loaded in this precision."""
    torch.manual_seed(1)
    config = model_config(work.shape).model_copy(update={"generator_bias": True})
    model = build_model(config, work.shape.vocabulary, work.shape.vocabulary)
    with torch.no_grad():
        model.generator.projection.bias[EOS] = NEVER
    engine = TorchEngine(model.to(dtype).eval(), work.device, constant=True)

    def decode(sources: Sources, beams: int, length: int) -> list[int]:
        options = SearchOptions(method="greedy" if beams == 1 else "beam", beam_size=beams, max_length=length)
        (found,) = engine.search([SearchBatch(sources)], options)
        return [len(best.ids) for best, *_ in found]

    return decode


def hugging_face(work: Work, **ways: Any) -> Decode:
    """`MarianMTModel.generate` in bf16 with `sdpa`; `ways` are options of it."""
    from contenders.train_marian import build

    torch.backends.cuda.enable_cudnn_sdp(True)  # as torch has it
    torch.manual_seed(1)
    model: Any = build(work.shape)
    model = model.to(work.device, torch.bfloat16).eval()
    model.final_logits_bias[0, [PAD, BOS, EOS]] = NEVER

    def decode(sources: Sources, beams: int, length: int) -> list[int]:
        longest = max(map(len, sources)) + 1
        source = torch.tensor([[*row, EOS] + [PAD] * (longest - 1 - len(row)) for row in sources]).to(work.device)
        with torch.inference_mode():
            found = model.generate(
                input_ids=source,
                attention_mask=(source != PAD).long(),
                num_beams=beams,
                do_sample=False,
                early_stopping=beams > 1,
                max_new_tokens=length,
                use_cache=True,
                **ways,
            )
        return [row.count(True) for row in (found[:, 1:] > EOS).tolist()]

    return decode


def decoding(work: Work) -> dict[str, Any]:
    """Every contender at every size, and how often tfm waits for the GPU."""
    contenders: dict[str, Callable[[], Decode]] = {
        "tfm, bf16": lambda: tfm(work, torch.bfloat16),
        "tfm, fp16": lambda: tfm(work, torch.float16),
        "tfm, fp32": lambda: tfm(work, torch.float32),
        **{name: partial(hugging_face, work, **ways) for name, ways in HUGGING_FACE.items()},
    }
    results: dict[str, Any] = {case(beams, batch): {} for beams, batch in sizes(work)}
    for name, build in contenders.items():
        for place, result in speeds(work, build, sizes(work)).items():
            results[place][name] = result
    for result in results.values():
        result["tfm ÷ Hugging Face, fastest of each"] = compare(result)
    results["waits and kernels"] = look_inside(work)
    return results


def compiled(work: Work) -> dict[str, Any]:
    """Hugging Face with a compiled step, greedy at the smaller batch: it takes long to begin."""
    ways = {"cache_implementation": "static"}
    return speeds(work, lambda: hugging_face(work, **ways), sizes(work)[:1])


def sizes(work: Work) -> list[tuple[int, int]]:
    """Beams and batch of each case."""
    return [(beams, batch) for batch in ((2, 4) if work.small else (64, 512)) for beams in (1, BEAMS)]


def case(beams: int, batch: int) -> str:
    return f"{'greedy' if beams == 1 else f'{beams} beams'}, batch {batch}"


def sentences(work: Work, count: int) -> Sources:
    """Sources of like length, as a batch has them."""
    lengths = (8, 12) if work.small else (24, 30)
    return [source for source, _ in work.pairs if lengths[0] <= len(source) <= lengths[1]][:count]


def speeds(work: Work, build: Callable[[], Decode], cases: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Tokens and sentences per second of one contender in some cases, or why there are none."""
    length, rounds = (5, 1) if work.small else (40, 3)
    results: dict[str, Any] = {}
    if work.device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        decode = build()
        for beams, batch in cases:
            sources, seconds = sentences(work, batch), []
            for _ in range(1 + rounds):
                synchronise(work.device)
                began = time.perf_counter()
                found = decode(sources, beams, length)
                seconds.append(time.perf_counter() - began)
                assert found == [length] * batch, f"outputs of other lengths: {sorted(set(found))}"
            median = statistics.median(seconds[1:])
            results[case(beams, batch)] = {
                "tokens/s": round(batch * length / median),
                "sentences/s": round(batch / median, 1),
                "ms per step": round(1000 * median / length, 3),
                "range, ms": [round(1000 * each / length, 3) for each in (min(seconds[1:]), max(seconds[1:]))],
                "first time, s": round(seconds[0], 2),
            }
    except Exception as error:
        for place in cases:
            results.setdefault(case(*place), f"did not run: {type(error).__name__}: {error}"[:300])
    return results


def compare(results: dict[str, Any]) -> str:
    """How many times as many tokens per second, of the fastest way of each."""
    speed = {name: result["tokens/s"] for name, result in results.items() if isinstance(result, dict)}
    ours, theirs = ([speed[name] for name in speed if name.startswith(who)] for who in ("tfm, bf16", "Hugging"))
    if not ours or not theirs:
        return "not measured"
    times = max(ours) / max(theirs)
    return f"{times:.2f} (goal: {GOAL}, {'met' if times >= GOAL else 'missed'})"


def look_inside(work: Work) -> dict[str, Any]:
    """Where tfm's host waits for the GPU in two searches, and what the GPU does."""
    decode = tfm(work, torch.bfloat16)
    results: dict[str, Any] = {}
    for beams, batch in sizes(work)[:2]:
        sources = sentences(work, batch)
        decode(sources, beams, 8)
        result: dict[str, Any] = {}
        search = partial(decode, sources, beams, 8)
        if work.device.type == "cuda":
            result["waits in two searches of 8 steps"] = find_waits(search)
        result["kernels"] = profile_kernels(search, work.device)
        results[case(beams, batch)] = result
    return results
