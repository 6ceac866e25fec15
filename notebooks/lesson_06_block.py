# %% [markdown]
# # 6. The encoder block
#
# Attention moves information between tokens. But its output is only an average of values. An
# average cannot test whether a patch is round *and* dark. So a block has a second part, the *MLP*
# (multilayer perceptron), which works on each token by itself. A model stacks many blocks. To keep
# such a stack trainable, each of the two parts has a *norm* before it and a *residual* around it:
#
#     x = x + attention(norm1(x))
#     x = x + mlp(norm2(x))
#
# **Norm.** Each token is shifted and scaled so that its channels have mean 0 and variance 1. Then a
# learned factor and a learned shift are applied to each channel. So each part gets inputs of a
# known scale, however deep it lies.
#
# **Residual.** The output of a part is added to its input. So a block corrects a token; it does not
# replace it.
#
# **MLP.** A linear layer from C to 2 C or 4 C channels, a function called GELU on each of them, and
# a linear layer back to C.

# %%
import math

import torch
from torch import nn


def gelu(x):  # x times the probability that a standard Gaussian number is below x
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):  # an approximation without erf
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def norm(x, layer):
    mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, correction=0)
    return (x - mean) / (variance + layer.eps).sqrt() * layer.weight + layer.bias


def block_by_hand(x, block):
    x = x + block.attn(norm(x, block.norm1))  # attention: lessons 4 and 5
    hidden = gelu(block.mlp.fc1(norm(x, block.norm2)))  # (B, N, 2 C)
    return x + block.mlp.fc2(hidden)


# %%
import saccade

torch.manual_seed(0)
model = saccade.create_model("vit_cifar").eval()
block = model.blocks[0]
nn.init.normal_(block.norm1.weight)  # factors other than 1 make the test strict
x = torch.randn(2, 65, 256)

torch.testing.assert_close(block(x), block_by_hand(x, block))  # ours is the same
torch.testing.assert_close(nn.functional.gelu(x), gelu(x))
torch.testing.assert_close(nn.functional.gelu(x, approximate="tanh"), gelu_tanh(x))

# %% [markdown]
# ## Two GELUs
#
# Some models use the exact GELU, others the approximation with tanh. The two curves look the same,
# but they are not equal, and the difference adds up over the blocks: parameters trained with one
# GELU give slightly wrong outputs with the other. saccade has both: `act="gelu"` and
# `act="gelu_tanh"`.

# %%
points = torch.linspace(-5, 5, 1001)
difference = gelu_tanh(points) - gelu(points)
print(f"largest difference: {float(difference.abs().max()):.5f}")

assert 1e-4 < difference.abs().max() < 1e-3

# %% [markdown]
# ## What the residual is for
#
# Attention averages. Averages of averages become more and more alike: without residuals, all tokens
# would be the same vector after a few blocks. (arXiv:2103.03404 proves it for attention without
# residual and MLP.) The residual prevents this, because the average is added to the token itself.
# We stack twelve untrained blocks, with and without the "x +", and measure how much 65 random
# tokens differ from their mean.

# %%
blocks = saccade.create_model("vit_micro_patch4_32", depth=12).blocks


def relative_spread(x):
    return float((x - x.mean(dim=1, keepdim=True)).norm() / x.norm())


def differences(with_residual):
    torch.manual_seed(0)
    x = torch.randn(1, 65, 48)
    found = [relative_spread(x)]
    for block in blocks:
        x = block(x) if with_residual else block.mlp(block.norm2(block.attn(block.norm1(x))))
        found.append(relative_spread(x))
    return found


with torch.no_grad():
    kept, lost = differences(True), differences(False)
print(f"after twelve blocks: {kept[-1]:.0%} with the residual, {lost[-1]:.1e} without")

assert kept[-1] > 0.9
assert lost[-1] < 1e-4

# %% tags=["picture"] alt="the curves of GELU, its approximation and ReLU; their difference; and how much tokens differ after each block: they stay different with residuals and become equal without"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
axes[0].plot(points, points.relu(), color="gray", label="ReLU")
axes[0].plot(points, gelu(points), lw=4, alpha=0.4, label="GELU")
axes[0].plot(points, gelu_tanh(points), "--", label="GELU with tanh")
axes[0].set(title="three functions for the MLP", xlim=(-4, 2), ylim=(-0.4, 2), xlabel="x")
axes[0].legend()
axes[1].plot(points, difference * 1e4)
axes[1].set(title="with tanh minus exact, times 10,000", xlabel="x")
axes[2].semilogy(kept, "o-", label="with residuals")
axes[2].semilogy(lost, "o-", label="without residuals")
axes[2].set(title="how much the tokens differ", xlabel="after block")
axes[2].legend()
plt.show()

# %% [markdown]
# Without residuals, all tokens are equal after a few blocks, and nothing of the input is left. With
# residuals, the tokens stay different. Residuals have a second use: the gradient passes through the
# additions unchanged, from the last block back to the first.
#
# ## Exercise
#
# How many parameters does a block have? Write a formula in C for `vit_cifar`, whose MLP has 2 C
# channels inside, and check it.

# %% tags=["answer"]
C = 256
attention = (3 * C * C + 3 * C) + (C * C + C)  # qkv and proj, with biases
mlp = (C * 2 * C + 2 * C) + (2 * C * C + C)
norms = 2 * (C + C)
count = sum(parameter.numel() for parameter in block.parameters())
print(f"{count:,}")

assert count == attention + mlp + norms == 8 * C * C + 11 * C
