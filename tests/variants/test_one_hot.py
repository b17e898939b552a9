"""A one-hot vector times the matrix is the look-up of a row."""

from collections.abc import Callable

import pytest
import torch

from transformer_cli.model.embedding import TokenEmbedding
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer
from transformer_cli.variants.embeddings import OneHotEmbedding

SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0]])
TARGET = torch.tensor([[2, 4, 4, 18], [2, 11, 0, 0]])


def test_one_hot_times_matrix_is_the_look_up_and_so_is_its_gradient() -> None:
    torch.manual_seed(1)
    lookup, product = TokenEmbedding(7, 4), OneHotEmbedding(7, 4)
    product.load_state_dict(lookup.state_dict())
    ids, direction = torch.tensor([[2, 5, 5], [6, 1, 3]]), torch.randn(2, 3, 4)
    assert torch.equal(product(ids), lookup(ids))
    for embedding in (lookup, product):
        (embedding(ids) * direction).sum().backward()
    ours, theirs = product.table.weight.grad, lookup.table.weight.grad
    assert ours is not None
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert ours[5].abs().sum() > 0, "two places add up"
    assert not ours[4].any(), "a word that does not occur learns nothing"


@pytest.mark.parametrize("tie", ["none", "decoder"])
def test_the_config_chooses_it_and_weights_serve_both(build: Callable[..., Transformer], tie: str) -> None:
    """Padding included: nothing flows back to it in either."""
    models = [build(embedding=kind, tie_embeddings=tie) for kind in ("lookup", "one_hot")]
    assert type(models[1].source_embedding.tokens) is type(models[1].target_embedding.tokens) is OneHotEmbedding
    models[1].load_state_dict(models[0].state_dict())
    outputs = []
    for model in models:
        hidden = model(SOURCE, padding_mask(SOURCE), TARGET).hidden
        loss = model.generator.projection(hidden[TARGET != 0]).logsumexp(-1).sum()
        loss.backward()
        outputs.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_bf16_rounds_no_more_than_in_a_look_up() -> None:
    embedding, ids = OneHotEmbedding(7, 4), torch.tensor([[2, 5]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(embedding(ids), TokenEmbedding.forward(embedding, ids))
