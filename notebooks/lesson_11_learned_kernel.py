# %% [markdown]
# # 11. The learned kernel
#
# In linear attention the weight of a key is phi(q).phi(k), and phi decides everything. Lesson 9 took
# all products of two columns. Lesson 10 took random directions. The third way is to let training find
# phi. It is then a small network, applied to each query and key:
#
#     phi(x) = softplus(W2 relu(W1 x + b1) + b2)
#
# The last step, softplus(z) = log(1 + exp(z)), is positive everywhere. That is all that linear
# attention asks of phi: positive features give positive weights. In saccade this attention is called
# `performer_ftheta`.

# %%
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
D, K, M = 16, 64, 32  # columns of a query, width of the network, features


class LearnedFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D, K), nn.Linear(K, M)

    def forward(self, x):
        x = x * D**-0.25
        return F.softplus(self.fc2(F.relu(self.fc1(x))))


def weights(phi, q, k):
    products = phi(q) @ phi(k).mT
    return products / products.sum(dim=-1, keepdim=True)


from saccade.ops.linear import ftheta_mlp

phi = LearnedFeatures()
x = torch.randn(1, 1, 50, D)
parameters = (phi.fc1.weight, phi.fc1.bias, phi.fc2.weight, phi.fc2.bias)
ours = ftheta_mlp(x, *parameters, eps=0.0) * M**0.5  # ours divides by sqrt(M), which cancels
torch.testing.assert_close(ours, phi(x))

# %% [markdown]
# ## Teaching it softmax
#
# How much can such a small network learn? We show it random queries and keys, and ask it to
# imitate the rows of softmax. The measure is the Kullback-Leibler divergence, the usual distance of
# a distribution from a target. The scores are of size 2, where random features fail.


# %%
def draw(count):
    q, k = torch.randn(2, count, 1, 64, D) * 2**0.5
    return q, k, (q @ k.mT / D**0.5).softmax(dim=-1)


optimizer = torch.optim.Adam(phi.parameters(), lr=3e-3)
q, k, exact = draw(1)
before = weights(phi, q, k).detach()
losses = []
for _ in range(600):
    batch_q, batch_k, target = draw(16)
    found = weights(phi, batch_q, batch_k)
    loss = (target * (target.log() - found.log())).sum(dim=-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
after = weights(phi, q, k).detach()

# %% [markdown]
# We compare it with the other two ways on queries that it has never seen: the share of attention on
# wrong keys, as in lesson 10.

# %%
from saccade.ops.linear import favor_softmax, linear_weights, orthogonal_projection
from saccade.ops.taylor import taylor_weights

q_test, k_test, exact_test = draw(50)
w = orthogonal_projection(M, D, seed=0)
random_weights = linear_weights(
    favor_softmax(q_test, w, is_query=True), favor_softmax(k_test, w, is_query=False), eps=0.0
)
candidates = {
    "equal weights": torch.full_like(exact_test, 1 / 64),
    f"FAVOR+, {M} features": random_weights,
    "Taylor, 153 features": taylor_weights(q_test, k_test),
    f"learned, {M} features": weights(phi, q_test, k_test).detach(),
}
error = {
    name: float((w - exact_test).abs().sum(dim=-1).mean() / 2) for name, w in candidates.items()
}
for name, value in error.items():
    print(f"{name}: {value:.0%} on wrong keys")

assert error[f"learned, {M} features"] < error["equal weights"]
assert error[f"learned, {M} features"] < error[f"FAVOR+, {M} features"]

# %% tags=["picture"] alt="the loss falls; the weights of 32 queries and keys: uniform before training, after training similar to those of softmax but less sharp"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
axes[0].plot(losses)
axes[0].set(title="divergence from softmax", xlabel="step", ylim=(0, None))
for axis, shown, name in zip(
    axes[1:], (before, after, exact), ("before", "after training", "softmax"), strict=True
):
    axis.imshow(shown[0, 0, :32, :32], vmin=0, vmax=0.3, cmap="inferno")
    axis.set(title=name, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# With the same number of features, the learned ones do better than random ones, which for such
# scores are no better than equal weights. Taylor, with its 153 fixed features, is better still.
# None of them reaches the peaks of softmax. 32 positive numbers cannot single out one of very many
# possible keys. [Lesson 12](12-limits.md) measures this.
#
# In a real model the features do not have to imitate softmax. They are trained with everything else
# on the labels. The price is time: the network runs for every query and every key. In our
# comparison on CIFAR-10 `performer_ftheta` reaches 88.84 %, softmax 89.40 %, and an epoch takes
# 2.13 s against 0.76 s ([results](../results.md#nine-attentions-in-one-vit)).
#
# ## Exercise
#
# Replace softplus by the identity, so that features may be negative. What goes wrong?


# %% tags=["answer"]
class Signed(LearnedFeatures):
    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x * D**-0.25)))


products = Signed()(q_test) @ Signed()(k_test).mT
totals = products.sum(dim=-1)
print(f"{float((products < 0).float().mean()):.0%} of the weights are negative")

assert (products < 0).any()  # a negative weight
assert totals.abs().min() < totals.abs().mean() / 50  # a sum near zero, by which we would divide
