# %% [markdown]
# # Performer with a learned feature map (f-theta)
#
# This attention learns its features. They are the outputs of a small network whose last step makes
# them positive:
#
#     phi(x) = softplus(W2 relu(W1 x' + b1) + b2),   x' = x / D^(1/4),   w_ij = phi(q_i).phi(k_j)
#
# All heads of a layer share the network. It is trained with the rest of the model. It runs for
# every query and every key, which makes this attention the slowest of the Performers.
# [Lesson 11](../lessons/11-learned-kernel.md) shows what such features can learn.

# %%
import torch

torch.manual_seed(0)
from saccade import MultiHeadAttention

layer = MultiHeadAttention(64, num_heads=4, attention="performer_ftheta").double()
x = torch.randn(2, 100, 64, dtype=torch.float64)
q, k, v = layer.heads(x)  # (2, 4, 100, 16) each
core = layer.core


def attention(q, k, v, phi):
    phi_q, phi_k = phi(q), phi(k)
    state, total = phi_k.mT @ v, phi_k.sum(dim=-2)[..., None]  # all keys and values, once
    return phi_q @ state / (phi_q @ total)


print({name: tuple(parameter.shape) for name, parameter in core.named_parameters()})


def learned_features(x):
    w1, b1, w2, b2 = core.parameters()
    hidden = (x * 16**-0.25 @ w1.T + b1).relu()
    return torch.nn.functional.softplus(hidden @ w2.T + b2)


by_hand = attention(q, k, v, learned_features)
torch.testing.assert_close(core(q, k, v), by_hand, rtol=1e-4, atol=1e-5)  # ours adds 1e-6 to phi

# %% tags=["picture"] alt="softplus over its input: positive everywhere, close to zero on the left and to a line on the right"
import matplotlib.pyplot as plt

z = torch.linspace(-4, 3, 200)
figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axes.plot(z, torch.nn.functional.softplus(z))
axes.set(title="the last step of the network: softplus", xlabel="W2 relu(W1 x' + b1) + b2")
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
    load_config("digits-quick", [*changes, "model.attention=performer_ftheta"]), "run", quiet=True
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
# On CIFAR-10, in a model of four million parameters trained for 48 epochs, it reaches 88.84 %,
# softmax 89.40 %. [Results](../results.md#nine-attentions-in-one-vit) has the intervals.
# `saccade data fetch cifar10` loads the data, and
# `saccade train performer-ftheta-cifar10 --out runs/cifar` repeats this training.
