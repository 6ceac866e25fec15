# %% [markdown]
# # 8. Looking inside
#
# The model of chapter 7 reads digits. What does it look at? Attention gives an answer that other
# networks do not have: its weights say from which patches each token took its information.
#
# We train a model again, now with one call. It writes a *run folder* with the configuration, the
# metrics and the weights. This model cuts its patches with three small convolutions in place of one
# linear map, which helps where images are few. The blocks are those of chapter 6.

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
# A digit is a list of 4 x 4 = 16 patches and the class token.
#
# ## From maps to one map
#
# A block has one map for each head, and there are several blocks. How much of patch j arrives in
# the class token in the end? *Rollout* answers like this. In each block, average the heads. Half of
# a token stays (the residual), half is mixed by the map: (I + A) / 2. Then multiply these matrices
# through the blocks, and read the row of the class token.

# %%
from saccade.config import DataConfig
from saccade.data import load_splits

test = load_splits(DataConfig(name="digits")).test
images = (test.images[:12] / 255 - info.mean[0]) / info.std[0]


def rollout_by_hand(model, images):
    x = model.embed(images)  # chapters 1 to 3
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
# Rollout says where information came from. It does not say whether it mattered. The method
# `gradient` multiplies every weight with its effect on the predicted class and keeps the positive
# products.

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
# Read such maps with care. The two methods do not agree, and some weight lies on empty corners: a
# token may take something from a corner because all corners say the same.
# [explain.md](../explain.md#how-to-read-the-maps) says more.
#
# ## What the class token learns
#
# In [chapter 2](02-class-token.md) the class token started the same for every image. Here is what
# training makes of it. We take the class tokens of all test images after each block, and draw the two
# directions in which they differ most, with a color for each digit.

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

# %% tags=["picture"] alt="the class tokens of all test images after block 1 and block 2: many digits overlap after block 1, fewer after block 2"
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for axis, (number, (_, prefix)) in zip(axes, enumerate(found, 1), strict=True):
    tokens = prefix[:, 0] - prefix[:, 0].mean(dim=0)
    flat = tokens @ torch.linalg.svd(tokens, full_matrices=False).Vh[:2].T
    dots = axis.scatter(*flat.T, c=test.labels, cmap="tab10", s=12)
    axis.set(title=f"class tokens after block {number}", xticks=[], yticks=[])
figure.colorbar(dots, ax=axes, label="digit", ticks=range(10))
plt.show()

# %% [markdown]
# ## Exercise
#
# Which head does most of the work? Guess first. Then remove each head in turn, as in
# [chapter 5](05-heads.md), and measure the accuracy on the test images.

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
print(f"the most important head is worth {float(drops.max()):.1%}")

# No head does: without any one of them the model is nearly as good. To name a head by what it seems to
# look at is easy; to show that the model needs it is not.
assert drops.max() < 0.3
