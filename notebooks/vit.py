# %% [markdown]
# # ViT: softmax attention
#
# Softmax attention is the baseline. A vision transformer (arXiv:2010.11929) cuts an image into
# patches, and every patch attends to every other. The weight of a key is the exponential of its
# score:
#
#     w_ij = exp(q_i.k_j / sqrt(D)),   o_i = sum_j w_ij v_j / sum_j w_ij
#
# Cost: 4 N^2 D operations for each head. [Lessons 1 to 8](../lessons/01-patches.md) build the whole model.

# %%
import torch

torch.manual_seed(0)
from saccade import MultiHeadAttention

layer = MultiHeadAttention(64, num_heads=4, attention="softmax").double()
x = torch.randn(2, 100, 64, dtype=torch.float64)
q, k, v = layer.heads(x)  # (2, 4, 100, 16) each
core = layer.core

weights = (q @ k.mT / 16**0.5).exp()
by_hand = weights @ v / weights.sum(dim=-1, keepdim=True)
torch.testing.assert_close(core(q, k, v), by_hand)

# %% tags=["picture"] alt="the exponential, over the score"
import matplotlib.pyplot as plt

z = torch.linspace(-4, 3, 200)
figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axes.plot(z, z.exp())
axes.set(title="the weight of a key", xlabel="score")
plt.show()

# %% [markdown]
# ## In a model
#
# Now a small vision transformer with this attention is trained on digits of 8 x 8 pixels, for ten
# epochs. The notebooks of the other attentions train the same model; they change `model.attention`
# only.

# %%
import logging

from saccade.config import DataConfig, load_config
from saccade.data import load_splits
from saccade.explain import attention_maps, overlay
from saccade.train import load_model, train

logging.disable()
changes = ["model.overrides.depth=2", "train.epochs=10", "optim.lr=0.005"]
summary = train(
    load_config("digits-quick", [*changes, "model.attention=softmax"]), "run", quiet=True
)
model, info = load_model("run")
print(f"{summary['test_accuracy']:.1%} of the test images are right")

assert summary["test_accuracy"] > 0.9

# %% tags=["picture"] alt="six digits; bright places have the largest share in the class token (rollout)"
test = load_splits(DataConfig(name="digits")).test
images = (test.images[:6] / 255 - info.mean[0]) / info.std[0]
maps = attention_maps(model, images, method="rollout")
figure, axes = plt.subplots(1, 6, figsize=(9, 1.8), layout="constrained")
for axis, image, weights in zip(axes, test.images, maps.on_grid(maps.summary), strict=False):
    axis.imshow(overlay(1 - image / 255, weights))
    axis.axis("off")
plt.show()

# %% [markdown]
# On CIFAR-10, in a model of four million parameters trained for 48 epochs, softmax reaches 89.40 %.
# [Results](../results.md#nine-attentions-in-one-vit) has the intervals.
# `saccade data fetch cifar10` loads the data, and `saccade train vit-cifar10 --out runs/cifar`
# trains a model of this size for longer, 160 epochs.
