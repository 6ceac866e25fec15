# %% [markdown]
# # 6. The encoder block
#
# Attention moves information between tokens. But an average of values is a weak computation: it
# cannot combine two properties of a patch, such as "round *and* dark". So a block has a second part
# that works on each token by itself: the *MLP*. Because blocks are stacked many times, each of the
# two parts has a *norm* before it and a *residual* around it.
#
#     x = x + attention(norm1(x))
#     x = x + mlp(norm2(x))
#
# **Norm.** Each token is shifted and scaled so that its channels have mean 0 and variance 1. Then
# two learned vectors scale and shift the channels. So the input of each part has a known scale in
# every block.
#
# **Residual.** The output is added to the input. A block adds a correction to a token; it does not
# replace the token.
#
# **MLP.** A linear layer to two or four times the width, a curve called GELU, a linear layer back.

# %%
import math

import torch
from torch import nn


def gelu(x):  # x times the probability that a Gaussian number is below x
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):  # an approximation from the time when erf was slow
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(x, layer):
    mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, correction=0)
    return (x - mean) / (variance + layer.eps).sqrt() * layer.weight + layer.bias


def block_by_hand(x, block):
    x = x + block.attn(norm(x, block.norm1))  # attention: chapters 4 and 5
    hidden = gelu(block.mlp.fc1(norm(x, block.norm2)))  # (B, N, 4 C)
    return x + block.mlp.fc2(hidden)


# %%
import saccade

torch.manual_seed(0)
model = saccade.create_model("vit_cifar").eval()
block = model.blocks[0]
nn.init.normal_(block.norm1.weight)  # learned vectors that are not all 1, for a strict test
x = torch.randn(2, 65, 256)

torch.testing.assert_close(block(x), block_by_hand(x, block))  # ours is the same
torch.testing.assert_close(nn.functional.gelu(x), gelu(x))
torch.testing.assert_close(nn.functional.gelu(x, approximate="tanh"), gelu_tanh(x))

# %% [markdown]
# ## Two GELUs
#
# Some models use the exact GELU, some the approximation with tanh. The curves cannot be told apart
# by eye. But the difference is not zero, and it adds up over blocks: weights trained with one give
# slightly wrong outputs with the other. The option is `act="gelu"` or `act="gelu_tanh"`.

# %%
points = torch.linspace(-5, 5, 1001)
difference = gelu_tanh(points) - gelu(points)
print(f"largest difference: {float(difference.abs().max()):.5f}")

assert 1e-4 < difference.abs().max() < 1e-3

# %% [markdown]
# ## What the residual is for
#
# Attention averages. Averages of averages become more and more alike, and after a few blocks every
# token would be the same vector. (arXiv:2103.03404 proves this for attention alone, without
# residual and MLP.) The residual prevents it, because the average is added to the token itself. We
# stack twelve untrained blocks, with and without the "x +", and measure how much the 65 tokens of
# an image differ from their mean.

# %%
blocks = saccade.create_model("vit_micro_patch4_32", depth=12).blocks


def differences(with_residual):
    torch.manual_seed(0)
    x = torch.randn(1, 65, 48)
    found = []
    for block in blocks:
        spread = (x - x.mean(dim=1, keepdim=True)).norm() / x.norm()
        found.append(float(spread))
        x = block(x) if with_residual else block.mlp(block.norm2(block.attn(block.norm1(x))))
    return found


with torch.no_grad():
    kept, lost = differences(True), differences(False)
print(f"after eleven blocks: {kept[-1]:.0%} with the residual, {lost[-1]:.1e} without")

assert kept[-1] > 0.9
assert lost[-1] < 1e-4

# %% tags=["picture"] alt="the curves of GELU, its approximation and ReLU; their difference; and how much tokens differ over depth: as before with residuals, nothing without"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
axes[0].plot(points, points.relu(), color="gray", label="ReLU")
axes[0].plot(points, gelu(points), lw=4, alpha=0.4, label="GELU")
axes[0].plot(points, gelu_tanh(points), "--", label="with tanh")
axes[0].set(title="the curve of the MLP", xlim=(-4, 2), ylim=(-0.4, 2))
axes[0].legend()
axes[1].plot(points, difference * 1e4)
axes[1].set(title="tanh form minus exact, times 10,000", xlabel="x")
axes[2].semilogy(kept, "o-", label="with residuals")
axes[2].semilogy(lost, "o-", label="without")
axes[2].set(title="how much the tokens differ", xlabel="after block")
axes[2].legend()
plt.show()

# %% [markdown]
# Without the residual, all tokens are equal after a few blocks, and the image is lost. With it,
# tokens stay different. The residual also passes the gradient unchanged from the output back to the
# first block.
#
# ## Exercise
#
# How many parameters does a block have? Write a formula in C and check it for `vit_cifar`, whose
# MLP has 2 C hidden features.

# %% tags=["answer"]
C = 256
attention = (3 * C * C + 3 * C) + (C * C + C)  # qkv and proj, with biases
mlp = (C * 2 * C + 2 * C) + (2 * C * C + C)
norms = 2 * (C + C)
count = sum(parameter.numel() for parameter in block.parameters())
print(f"{count:,}")

assert count == attention + mlp + norms == 8 * C * C + 11 * C
