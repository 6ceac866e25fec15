# %% [markdown]
# # Performer with FAVOR+ features
#
# FAVOR+ estimates softmax with random features (arXiv:2009.14794). On average over the random
# matrix W, the weight is that of softmax:
#
#     phi(x) = exp(W x' - |x'|^2/2),   x' = x / D^(1/4),   E[phi(q).phi(k)] = exp(q.k / sqrt(D))
#
# The rows of W are orthogonal in blocks of D, which lowers the error. The largest exponent is
# subtracted, so that nothing overflows; this cancels in the division by the sum of weights. The
# cost is 4 N M (D + E) operations for M features and values of length E.
# [Lesson 10](../lessons/10-random-features.md) derives the identity and measures its error.

# %%
import torch

torch.manual_seed(0)
from saccade import MultiHeadAttention

layer = MultiHeadAttention(64, num_heads=4, attention="performer").double()
x = torch.randn(2, 100, 64, dtype=torch.float64)
q, k, v = layer.heads(x)  # (2, 4, 100, 16) each
core = layer.core


def attention(q, k, v, phi):
    phi_q, phi_k = phi(q), phi(k)
    state, total = phi_k.mT @ v, phi_k.sum(dim=-2)[..., None]  # all keys and values, once
    return phi_q @ state / (phi_q @ total)


def favor_features(x):
    x = x * 16**-0.25
    exponent = x @ core.projection.T - x.square().sum(dim=-1, keepdim=True) / 2
    return (exponent - exponent.amax(dim=(-2, -1), keepdim=True)).exp()


by_hand = attention(q, k, v, favor_features)
torch.testing.assert_close(core(q, k, v), by_hand, rtol=1e-3, atol=1e-4)  # ours adds 1e-6 to phi

# %% tags=["picture"] alt="weights estimated with 16 and with 1024 features against the exact weights; with 1024 features they lie closer to the diagonal"
import matplotlib.pyplot as plt

from saccade.ops.linear import favor_softmax, linear_weights, orthogonal_projection
from saccade.ops.softmax import softmax_weights

q, k = torch.randn(2, 1, 1, 64, 16) * 0.7
exact = softmax_weights(q, k).flatten()
figure, axes = plt.subplots(figsize=(4.2, 4), layout="constrained")
for m in (16, 1024):
    w = orthogonal_projection(m, 16, seed=0)
    phi = favor_softmax(q, w, is_query=True), favor_softmax(k, w, is_query=False)
    axes.plot(exact, linear_weights(*phi, eps=0.0).flatten(), ".", ms=2, label=f"{m} features")
axes.axline((0, 0), slope=1, color="black", lw=0.5)
axes.set(xlabel="weight of softmax", ylabel="estimate", xlim=(0, 0.08), ylim=(0, 0.08))
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
    load_config("digits-quick", [*changes, "model.attention=performer"]), "run", quiet=True
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
# On CIFAR-10, in a model of four million parameters trained for 48 epochs, it reaches 87.85 %,
# softmax 89.40 %. [Results](../results.md#nine-attentions-in-one-vit) has the intervals.
# `saccade data fetch cifar10` loads the data, and
# `saccade train performer-favor-cifar10 --out runs/cifar` repeats this training.
