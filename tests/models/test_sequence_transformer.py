"""Sequences: padding changes nothing, lengths are settable, embeddings are what they say."""

import pytest
import torch
from torch import Tensor

from saccade import SequenceTransformer, TaylorShiftTransformer, create_model, list_attentions
from saccade.layers.sequence_embeddings import ConvEmbedding, TokenEmbedding

LENGTHS = torch.tensor([6, 11])


def small(**options: object) -> SequenceTransformer:
    torch.manual_seed(0)
    defaults = {"embed_dim": 16, "num_heads": 2, "depth": 2, "num_classes": 3, "feature_seed": 1}
    return SequenceTransformer(16, 5, **(defaults | options)).double().eval()


def padded_batch(embedding: str) -> tuple[Tensor, Tensor]:
    """Two sequences of 6 and 11 tokens, padded to 11 with rubbish, and their mask."""
    torch.manual_seed(1)
    mask = torch.arange(11) < LENGTHS[:, None]
    if embedding == "token":
        return torch.randint(5, (2, 11)), mask
    return 3 * torch.randn(2, 11, 5, dtype=torch.float64), mask


def assert_padding_changes_nothing(model: SequenceTransformer, embedding: str) -> None:
    x, mask = padded_batch(embedding)
    together = model(x, key_mask=mask)
    alone = [model(x[i : i + 1, :length]) for i, length in enumerate(LENGTHS)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("attention", list_attentions())
@pytest.mark.parametrize("embedding", ["linear", "conv", "conv_pyramid", "token"])
def test_padding_changes_nothing(attention: str, embedding: str) -> None:
    assert_padding_changes_nothing(small(attention=attention, embedding=embedding), embedding)


@pytest.mark.parametrize("pool", ["avg", "map"])
def test_pooling_leaves_padding_out(pool: str) -> None:
    model = small(global_pool=pool, class_token=False)
    assert_padding_changes_nothing(model, "linear")


def test_the_comparison_catches_a_mask_that_is_ignored() -> None:
    model = small()
    x, _ = padded_batch("linear")
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(model(x)[:1], model(x[:1, :6]))


def test_position_matters_only_with_positions() -> None:
    x, _ = padded_batch("linear")
    shuffled = x[:, torch.randperm(11)]
    without = small(pos_embed="none")
    torch.testing.assert_close(without(shuffled), without(x))
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(small()(shuffled), small()(x))


@pytest.mark.parametrize("pos_embed", ["learned", "sinusoidal_1d", "none"])
def test_longest_sequence_is_settable(pos_embed: str) -> None:
    model = small(pos_embed=pos_embed)
    x = torch.randn(1, 30, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="max_seq_len=16"):
        model(x)
    model.max_seq_len = 30
    assert model(x).shape == (1, 3)
    assert model.config.max_seq_len == 30


@pytest.mark.parametrize("pos_embed", ["learned", "sinusoidal_1d"])
def test_without_a_position_for_the_class_token_the_table_has_none(pos_embed: str) -> None:
    model = small(pos_embed=pos_embed, no_embed_class=True)
    assert model.pos_embed.shape == (1, 16, 16)
    x = torch.randn(1, 11, 5, dtype=torch.float64)
    embedded = model.embed(x)
    torch.testing.assert_close(embedded[:, :1], model.cls_token)
    expected = model.token_embed(x) + model.pos_embed[:, :11]
    torch.testing.assert_close(embedded[:, 1:], expected)
    model.max_seq_len = 30
    assert model.pos_embed.shape == (1, 30, 16)
    assert model(torch.randn(1, 30, 5, dtype=torch.float64)).shape == (1, 3)


def test_longer_sinusoids_agree_with_shorter_ones() -> None:
    model = small()
    x, _ = padded_batch("linear")
    before = model(x)
    model.max_seq_len = 100
    assert torch.equal(model(x), before)


def test_token_embedding_is_linear_on_one_hot() -> None:
    torch.manual_seed(0)
    table = TokenEmbedding(5, 8)
    symbols = torch.randint(5, (2, 7))
    one_hot = torch.nn.functional.one_hot(symbols, 5).float()
    torch.testing.assert_close(table(symbols), one_hot @ table.proj.weight)


def test_conv_embedding_sees_neighbors_and_no_further() -> None:
    torch.manual_seed(0)
    embedding = ConvEmbedding(5, 8).double()
    embedding.norms = torch.nn.ModuleList(torch.nn.Identity() for _ in range(3))
    x = torch.randn(1, 20, 5, dtype=torch.float64)
    other = x.clone()
    other[:, 10] += 1
    changed = (embedding(other) != embedding(x)).any(dim=-1)[0].nonzero().flatten()
    assert changed.tolist() == list(range(7, 14))


def test_full_mask_and_no_mask_agree_in_conv_embedding() -> None:
    torch.manual_seed(0)
    embedding = ConvEmbedding(5, 8, num_groups=4).double()
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    mask = torch.ones(2, 9, dtype=torch.bool)
    torch.testing.assert_close(embedding(x, mask), embedding(x))


def test_seed_class_takes_convolutions_and_options() -> None:
    sizes = {"num_classes": 3, "embed_dim": 16, "num_heads": 2, "depth": 1}
    model = TaylorShiftTransformer(8, 5, conv_embed=True, drop_rate=0.1, **sizes)
    assert model(torch.randn(2, 8, 5)).shape == (2, 3)
    assert [conv.weight.shape for conv in model.token_embed.convs] == [
        (4, 5, 3),
        (8, 4, 3),
        (16, 8, 3),
    ]
    assert all(conv.bias is None for conv in model.token_embed.convs)
    assert (model.config.drop_rate, model.config.proj_drop_rate) == (0.1, 0.1)
    with pytest.raises(
        ValueError, match=r"conv_embed must be True or False, got 10; .*num_classes"
    ):
        TaylorShiftTransformer(8, 5, 10)
    with pytest.raises(ValueError, match=r"unknown model option 'mlp_ration'.*'mlp_ratio'"):
        TaylorShiftTransformer(8, 5, mlp_ration=2)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_mask_reaches_checkpointed_blocks(checkpointing: bool) -> None:
    model = small()
    model.set_grad_checkpointing(checkpointing)
    assert_padding_changes_nothing(model, "linear")


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("listops", (512, 4, 8, 1024)),
        ("imdb", (256, 4, 4, 1024)),
        ("cifar_pixel", (256, 1, 4, 256)),
        ("pathfinder", (64, 4, 4, 64)),
    ],
)
def test_sequence_sizes_are_taylorshifts(task: str, sizes: tuple[int, ...]) -> None:
    with torch.device("meta"):
        model = create_model(f"taylorshift_{task}")
    config = model.config
    found = (config.embed_dim, len(model.blocks), config.num_heads, config.mlp_features)
    assert found == sizes
