"""The snippets of TaylorShift's README, with only the imports changed.

The README's batch of 32 runs in the slow tests; otherwise a batch of 2 takes a sixteenth of the
time through the same code.
"""

import pytest
import torch

from saccade import TaylorShiftTransformer, TaylorShiftViT, create_model, vit_sizes
from saccade.ops.taylor import speed_threshold

batch_sizes = pytest.mark.parametrize("bs", [2, pytest.param(32, marks=pytest.mark.slow)])


@batch_sizes
def test_transformer_snippet(bs: int) -> None:
    max_seq_len = 4096
    input_dim = 256
    model = TaylorShiftTransformer(
        max_seq_len, input_dim, num_classes=1000, num_heads=8, depth=6, embed_dim=256
    )

    seq_len = 1024  # or any other sequence length <= max_seq_len
    x = torch.randn(bs, seq_len, input_dim)
    pred = model(x)  # (bs, num_classes)

    assert pred.shape == (bs, 1000)


@batch_sizes
def test_vit_snippet(bs: int) -> None:
    size = vit_sizes["S"]
    image_size = 224
    model = TaylorShiftViT(image_size, num_classes=1000, patch_size=16, **size)

    x = torch.randn(bs, 3, image_size, image_size)
    pred = model(x)  # (bs, num_classes)

    assert pred.shape == (bs, 1000)


def test_threshold_snippet(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = TaylorShiftViT(64, num_classes=10, patch_size=8, **vit_sizes["na"]).double().eval()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    chosen = model.blocks[0].attn.core.choose

    print(model.N0)  # by default, the theoretical threshold for d = embed_dim//num_heads
    assert capsys.readouterr().out.strip() == str(speed_threshold(96 // 2))

    model.N0 = -1  # to use efficient-TaylorShift for all sequence lengths
    assert chosen(65, 65) == "efficient"
    efficient = model(x)

    model.N0 = 2**64  # to use direct-TaylorShift for (almost) all sequence lengths
    assert chosen(65, 65) == "direct"
    torch.testing.assert_close(model(x), efficient)
    assert not torch.equal(model(x), efficient)


def test_defaults_are_the_published_ones() -> None:
    with torch.device("meta"):
        vit, transformer = TaylorShiftViT(), TaylorShiftTransformer(64, 8)
    for model in (vit, transformer):
        config = model.config
        assert (config.embed_dim, config.depth, config.num_heads) == (768, 12, 12)
        assert (config.num_classes, config.no_embed_class, config.norm_eps) == (1000, True, 1e-6)
        assert model.blocks[0].attn.core.output_normalized
    assert vit.pos_embed.shape == (1, 196, 768)


def test_coefficients_and_normalizations_reach_every_block() -> None:
    options = {"a": 0.7, "b": -0.5, "c": 0.9, "normalize_input": False, "output_normalized": False}
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    vit = TaylorShiftViT(32, **options, **sizes)
    transformer = TaylorShiftTransformer(9, 4, **options, **sizes)
    for block in (*vit.blocks, *transformer.blocks):
        core = block.attn.core
        assert core.coefficients == (0.7, -0.5, 0.9)
        assert (core.normalize_input, core.output_normalized, core.temperature) == (
            False,
            False,
            None,
        )


def test_arguments_by_place_are_not_taken_for_others() -> None:
    with pytest.raises(TypeError, match="positional"):
        TaylorShiftViT(64, 10)


def test_another_attention_leaves_the_arguments_of_taylorshift_out() -> None:
    model = TaylorShiftViT(32, embed_dim=16, depth=1, num_heads=2, attention="softmax")
    assert model.config.attention_options == {}


def test_thresholds_of_the_paper() -> None:
    with torch.device("meta"):
        vit = TaylorShiftViT(224, **vit_sizes["S"])
        transformer = TaylorShiftTransformer(1024, 16, embed_dim=256, num_heads=8)
    assert (vit.N0, transformer.N0) == (4161, 1057)  # d = 64 and 32


def test_threshold_reaches_every_block_and_is_saved() -> None:
    model = create_model("taylorshift_vit_na_patch16_224")
    model.N0 = 7
    assert [block.attn.N0 for block in model.blocks] == [7, 7]
    assert model.config.attention_options["N0"] == 7


def test_softmax_has_no_threshold() -> None:
    model = create_model("light_vit")
    assert not hasattr(model, "N0")
    with pytest.raises(AttributeError, match=r"softmax.*N0"):
        model.N0 = 5
