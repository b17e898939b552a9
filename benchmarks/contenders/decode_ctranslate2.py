"""CTranslate2 called directly on ready-made tokens, all handed over at once, with its best threading for each task.

A thread a batch and several threads for one batch are both tried the first time a task comes.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import ctranslate2

LIBRARIES = ("ctranslate2",)


def start(work: dict[str, Any], compute_type: str) -> Callable[..., dict[str, Any]]:
    """Of the model that `work["ctranslate2"]` names."""
    threads = int(os.environ["OMP_NUM_THREADS"])
    translators = [
        ctranslate2.Translator(
            work["ctranslate2"], "cpu", compute_type=compute_type, inter_threads=inter, intra_threads=intra
        )
        for inter, intra in {(threads, 1), (1, threads), (1, 1)}
    ]
    best: dict[tuple[int, int], Any] = {}
    limit = 2 * max(map(len, work["tokens"])) + 10

    def translate(translator: Any, beam: int, batch: int, rows: list[list[str]]) -> int:
        groups = [rows] if batch > 1 else [[row] for row in rows]
        found = [
            result
            for group in groups
            for result in translator.translate_batch(
                group, beam_size=beam, max_batch_size=batch, max_input_length=0, max_decoding_length=limit
            )
        ]
        return sum(len(result.hypotheses[0]) for result in found)

    def seconds(translator: Any, beam: int, batch: int, rows: list[list[str]]) -> float:
        translate(translator, beam, batch, rows)
        began = time.perf_counter()
        translate(translator, beam, batch, rows)
        return time.perf_counter() - began

    def decode(beam: int, batch: int, first: int, count: int) -> dict[str, Any]:
        rows = work["tokens"][first : first + count]  # the model adds </s> itself
        if (beam, batch) not in best:
            best[beam, batch] = min(translators, key=lambda one: seconds(one, beam, batch, rows))
        return {"tokens": translate(best[beam, batch], beam, batch, rows)}

    return decode
