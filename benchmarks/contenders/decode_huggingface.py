"""Hugging Face's `MarianMTModel.generate` with the same weights, on ready-made token ids, batches of like length.

Its defaults for attention (`sdpa`) and cache; beams end as tfm's do (`early_stopping`): the other rule searches longer.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from transformers import MarianMTModel
from transformers.utils import logging

LIBRARIES = ("transformers",)
PAD, EOS = 0, 3


def start(work: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Of the model that `work["huggingface"]` names, in float32."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model = MarianMTModel.from_pretrained(work["huggingface"]).eval()  # type: ignore[no-untyped-call]

    def translate(rows: list[list[int]], beam: int) -> int:
        longest = max(map(len, rows))
        source = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        with torch.inference_mode():
            found = model.generate(
                input_ids=source,
                attention_mask=(source != PAD).long(),
                num_beams=beam,
                do_sample=False,
                early_stopping=beam > 1,
                max_new_tokens=2 * longest + 10,
            )
        # The first token is the start; what is no padding and no end was put out.
        return int(((found[:, 1:] != PAD) & (found[:, 1:] != EOS)).sum())

    def decode(beam: int, batch: int, first: int, count: int) -> dict[str, Any]:
        rows = sorted(([*ids, EOS] for ids in work["ids"][first : first + count]), key=len, reverse=True)
        return {"tokens": sum(translate(rows[begin : begin + batch], beam) for begin in range(0, count, batch))}

    return decode
