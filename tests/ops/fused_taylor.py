"""The fused Taylor attentions and their equations, as tests call them."""

import torch

from saccade.ops import taylor_attention
from saccade.ops.taylor import taylorshift_attention
from saccade.ops.taylor.reference import taylor_attention_reference
from tests.ops.mechanisms import make_inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COEFFICIENTS = (0.3, -0.7, 1.2)


def on_device(function, *inputs, **options):
    moved = [x if x is None else x.to(DEVICE) for x in inputs]
    mask = options.pop("key_mask", None)
    mask = mask if mask is None else mask.to(DEVICE)
    return function(*moved, key_mask=mask, backend="triton", **options).to(inputs[0].device)


def fused(algorithm, q, k, v, mask):
    options = {"algorithm": algorithm, "coefficients": COEFFICIENTS}
    return on_device(taylor_attention, q, k, v, key_mask=mask, **options)


def equation(q, k, v, mask):
    scale = q.shape[-1] ** -0.5
    return taylor_attention_reference(
        q, k, v, scale=scale, coefficients=COEFFICIENTS, key_mask=mask
    )


def fused_shift(algorithm, q, k, v, mask, temperature):
    options = {"algorithm": algorithm, "normalize_output": True}
    return on_device(taylorshift_attention, q, k, v, temperature, key_mask=mask, **options)


def shift_equation(q, k, v, mask, temperature):
    q, k = (x / (x**2).sum(dim=-1, keepdim=True).sqrt() for x in (q, k))
    out = taylor_attention_reference(q * temperature.view(-1, 1, 1), k, v, scale=1.0, key_mask=mask)
    keys = torch.full((len(q),), k.shape[2]) if mask is None else mask.sum(dim=-1)
    return out * (keys.to(out.dtype) / k.shape[3]).sqrt().view(-1, 1, 1, 1)


def draw(seed, **shape):
    return list(make_inputs(seed=seed, **shape))


def draw_shift(seed, **shape):
    inputs = draw(seed, **shape)
    return [*inputs, torch.linspace(0.5, 3.0, inputs[0].shape[1], dtype=torch.float64)]
