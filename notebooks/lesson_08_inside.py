# %% [markdown]
# # 8. Looking inside
#
# The model of lesson 7 reads digits. Which parts of an image does it look at? Attention gives an
# answer that other networks do not give: its weights say from which patches each token took its
# values.
#
# We train a model again, this time with one call. The call writes a *run folder* with the
# configuration, the accuracies and the parameters. In this model three small convolutions make the
# patches, in place of one linear map. That helps if there are few images. The blocks are those of
# lesson 6.

# %%
import logging

import torch

from saccade.config import load_config
from saccade.train import load_model, train

logging.disable()
changes = ["model.overrides.depth=2", "train.epochs=10", "optim.lr=0.005"]
summary = train(load_config("digits-quick", changes), "run", quiet=True)
model, info = load_model("run")
print(f"{summary['test_accuracy']:.1%} of the test images are right")

assert summary["test_accuracy"] > 0.95

# %% [markdown]
# For this model, a digit is a list of 4 x 4 = 16 patches and the class token, 17 tokens.
#
# ## From maps to one map
#
# The attention weights of a head are a matrix of 17 x 17 numbers, its *map*. Row i says how token i
# weighs the values of all tokens. There is one map for each head of each block. We want one answer
# for the whole model: how much of each patch is in the class token at the end?
#
# The method *rollout* answers like this. In each block, take the mean A of the maps of all heads.
# The block keeps a token (the residual) and adds a mixture (the attention). Rollout counts both as
# one half: (I + A) / 2, where I is the identity matrix. It multiplies these matrices over all
# blocks. In the product, the row of the class token says which share comes from which token.

# %%
from saccade.config import DataConfig
from saccade.data import load_splits

test = load_splits(DataConfig(name="digits")).test
images = (test.images[:12] / 255 - info.mean[0]) / info.std[0]


def rollout_by_hand(model, images):
    x = model.embed(images)  # lessons 1 to 3
    mixing = torch.eye(x.shape[1])
    for block in model.blocks:
        maps = block.attn.attention_weights(block.norm1(x))  # (B, H, N, N)
        mixing = (torch.eye(x.shape[1]) + maps.mean(dim=1)) / 2 @ mixing
        x = block(x)
    return mixing[:, 0]  # the row of the class token


from saccade.explain import attention_maps, overlay, rollout

with torch.no_grad():
    shares = rollout_by_hand(model, images)
torch.testing.assert_close(rollout(model, images), shares)  # ours is the same
print(tuple(shares.shape), f"sum of a row: {float(shares[0].sum()):.3f}")

# %% [markdown]
# Rollout says where information came from, but not whether it mattered. The method `gradient` asks
# what mattered. It multiplies each weight by the effect that a small change of this weight has on
# the logit of the predicted class, and keeps the positive products.

# %% tags=["picture"] alt="six digits; the same with the rollout in color; the same with the gradient method in color"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(3, 6, figsize=(9, 4.6), layout="constrained")
for row, method in enumerate((None, "rollout", "gradient")):
    maps = None if method is None else attention_maps(model, images, method=method)
    for column in range(6):
        digit = 1 - test.images[column] / 255
        shown = digit.expand(3, -1, -1).permute(1, 2, 0)
        if maps is not None:
            shown = overlay(digit, maps.on_grid(maps.summary)[column])
        axes[row, column].imshow(shown)
        axes[row, column].set(xticks=[], yticks=[])
    axes[row, 0].set_ylabel(method or "image")
plt.show()

# %% [markdown]
# The bright places have the largest shares. Read such maps with care. The two methods do not agree,
# and both put some weight on empty corners, which say little about a digit. Attention is also only
# one part of a block: values and MLP matter, too.
# [How to read the maps](../explain.md#how-to-read-the-maps) says more.
#
# ## What the class token learns
#
# In [lesson 2](02-class-token.md), the class token was the same for every image at first and
# differed a little after each block. What has training made of that? We take the class tokens of
# all test images after each block. A class token is *nearest to the center of its digit* if it is
# closer to the mean of the class tokens of its digit than to the means of the others.

# %%
pixels = (test.images / 255 - info.mean[0]) / info.std[0]
with torch.no_grad():
    _, found = model.forward_intermediates(pixels, return_prefix_tokens=True)
    right = (model(pixels).argmax(dim=1) == test.labels).float().mean()
for number, (_, prefix) in enumerate(found, 1):
    tokens = prefix[:, 0]
    centers = torch.stack([tokens[test.labels == digit].mean(dim=0) for digit in range(10)])
    nearest = torch.cdist(tokens, centers).argmin(dim=1)
    share = (nearest == test.labels).float().mean()
    print(f"after block {number}: {share:.0%} are nearest to the center of their digit")

assert share > 0.95

# %% [markdown]
# The class tokens have 64 channels. For the pictures we take the two directions in which they
# differ most (their principal components).

# %% tags=["picture"] alt="the class tokens of all test images after block 1 and block 2, a color for each digit: in each picture, most digits form a group of their own"
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for axis, (number, (_, prefix)) in zip(axes, enumerate(found, 1), strict=True):
    tokens = prefix[:, 0] - prefix[:, 0].mean(dim=0)
    flat = tokens @ torch.linalg.svd(tokens, full_matrices=False).Vh[:2].T
    dots = axis.scatter(*flat.T, c=test.labels, cmap="tab10", s=12, vmin=-0.5, vmax=9.5)
    axis.set(title=f"class tokens after block {number}", xticks=[], yticks=[])
figure.colorbar(dots, ax=axes, label="digit", ticks=range(10))
plt.show()

# %% [markdown]
# Each dot is the class token of one image, and its color is the digit. The digits form groups,
# although all class tokens began as the same vector. Some groups overlap in these pictures, but not
# in all 64 channels: there, nearly every class token is nearest to the center of its own digit.
#
# ## Exercise
#
# Which head does most of the work? Guess first. Then remove one head at a time, as in
# [lesson 5](05-heads.md), and measure the accuracy on the test images.

# %% tags=["answer"]
D = model.blocks[0].attn.head_dim
drops = torch.zeros(len(model.blocks), 4)
with torch.no_grad():
    for i, block in enumerate(model.blocks):
        for head in range(4):
            kept = block.attn.proj.weight.clone()
            block.attn.proj.weight[:, head * D : (head + 1) * D] = 0
            without = (model(pixels).argmax(dim=1) == test.labels).float().mean()
            block.attn.proj.weight.copy_(kept)
            drops[i, head] = right - without
print(f"without the most important head, {float(drops.max()):.1%} fewer images are right")

# No head does most of the work: without any one of them, the model is nearly as good. It is easy to
# say what a head looks at. It is harder to show that the model needs it.
assert drops.max() < 0.3
