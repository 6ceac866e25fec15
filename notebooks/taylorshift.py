# %% [markdown]
# # TaylorShift
#
# TaylorShift is Taylor attention with three additions (arXiv:2403.02920). Queries and keys are
# scaled to length 1. Each head learns a temperature tau. The output is multiplied by sqrt(N/D):
#
#     w_ij = 1 + s + s^2/2,   s = tau q_i.k_j / (|q_i| |k_j|)
#
# Scores stay between -tau and tau. For small tau, the polynomial is close to the exponential there.
# The output is an average of N values. The more values, the shorter it gets: its length is about
# 1/sqrt(N). The factor sqrt(N/D) makes up for that.

# %%
import torch

torch.manual_seed(0)
from saccade import MultiHeadAttention

layer = MultiHeadAttention(64, num_heads=4, attention="taylorshift").double()
x = torch.randn(2, 100, 64, dtype=torch.float64)
q, k, v = layer.heads(x)  # (2, 4, 100, 16) each
core = layer.core

unit_q, unit_k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
scores = unit_q @ unit_k.mT  # tau starts at 1
weights = 1 + scores + scores**2 / 2
by_hand = weights @ v / weights.sum(dim=-1, keepdim=True) * (100 / 16) ** 0.5
torch.testing.assert_close(core(q, k, v), by_hand)

layer.N0 = -1  # linear time at every length; 2**64 would mean never
torch.testing.assert_close(core(q, k, v), by_hand)

# %% tags=["picture"] alt="how the length of the output falls with the number of tokens without the factor, and hardly changes with it"
import matplotlib.pyplot as plt

from saccade.ops.taylor import taylor_weights

lengths, tokens = [], [16, 64, 256, 1024]
for n in tokens:
    q, k, v = torch.nn.functional.normalize(torch.randn(3, 20, 1, n, 16), dim=-1)
    lengths.append(float((taylor_weights(q, k, scale=1.0) @ v).norm(dim=-1).mean()))
figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axes.plot(tokens, lengths, "o-", label="weights times values")
axes.plot(
    tokens,
    [y * (n / 16) ** 0.5 for n, y in zip(tokens, lengths, strict=True)],
    "o-",
    label="times sqrt(N/D)",
)
axes.set(title="length of the output", xlabel="tokens N", xscale="log", yscale="log")
axes.legend()
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
    load_config("digits-quick", [*changes, "model.attention=taylorshift"]), "run", quiet=True
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
# On CIFAR-10, in a model of four million parameters trained for 48 epochs, it reaches 88.94 %,
# softmax 89.40 %. [Results](../results.md#nine-attentions-in-one-vit) has the intervals.
# `saccade data fetch cifar10` loads the data, and
# `saccade train vit-cifar10 model.attention=taylorshift --out runs/cifar` trains a model of this
# size for longer, 160 epochs.
