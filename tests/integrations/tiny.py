"""Tiny random models of timm and transformers whose weights are large enough to matter."""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch
import transformers
from torch import Tensor, nn

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
HF_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
VISION_SIZES = {**HF_SIZES, "image_size": 32, "patch_size": 8, "num_labels": 5}
VOCABULARY = 50


def enlarged(model: nn.Module) -> nn.Module:
    """Random parameters: linear layers of unit gain, so that scores differ from zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 4
            noise = torch.randn(parameter.shape, generator=generator)
            start = parameter if parameter.dim() == 1 else 0
            parameter.copy_(start + 1.5 * noise / fan_in**0.5)
    return model.eval()


def timm_model(name: str = "vit_tiny_patch16_224", **options: object) -> nn.Module:
    torch.manual_seed(0)
    return enlarged(timm.create_model(name, num_classes=5, **SIZES, **options))


def vision_model(kind: str) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**VISION_SIZES)
    return enlarged(getattr(transformers, f"{kind}ForImageClassification")(config))


def bert(**options: object) -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCABULARY, **HF_SIZES, **options)
    return enlarged(transformers.BertForSequenceClassification(config))


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def sentences() -> dict[str, Tensor]:
    """Two sentences, the second padded from seven to four words."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    words = torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(3))
    return {"input_ids": words, "attention_mask": mask}


def gradients(model: nn.Module, call: Callable[[], Tensor]) -> dict[str, Tensor]:
    """The output, and the gradient of its mean square by every parameter."""
    model.zero_grad()
    out = call()
    out.float().square().mean().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found | {"output": out.detach()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        scale = tensor.abs().max().clamp(min=1e-6)
        torch.testing.assert_close(found[name] / scale, tensor / scale, rtol=0, atol=tolerance)
