"""The memory that training will need is tried before it begins, and nothing else changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.run import train


def test_the_probe_tries_both_passes_of_r_drop(
    tmp_path: Path, tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for the costliest batch once is enough without R-Drop, and too little with it."""
    rows: list[int] = []
    forward = Transformer.forward

    def limited(self: Transformer, source: torch.Tensor, *others: Any) -> Any:
        if rows and source.numel() > rows[0]:
            raise torch.OutOfMemoryError("no memory")
        rows.append(source.numel())
        return forward(self, source, *others)

    monkeypatch.setattr(Transformer, "forward", limited)
    config = tiny_config(tmp_path, max_steps=1)
    assert train(config, tmp_path / "plain", quiet=True).step == 1
    del rows[1:]  # what the first probe took
    twice = config.model_copy(update={"training": config.training.model_copy(update={"r_drop": 1.0})})
    with pytest.raises(UserError, match="not enough memory on cpu for the costliest batch"):
        train(twice, tmp_path / "twice", quiet=True)
    assert not (tmp_path / "twice").exists()
