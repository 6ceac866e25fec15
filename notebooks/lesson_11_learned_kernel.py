# %% [markdown]
# # 11. The learned kernel
#
# In linear attention the weight of a key is phi(q).phi(k), so the features phi decide everything.
# In lesson 9 the features were all products of two columns, in lesson 10 they came from random
# directions. The third way is to let training find them. Then phi is a small network, applied to
# each query and each key:
#
#     phi(x) = softplus(W2 relu(W1 x + b1) + b2)
#
# The last step, softplus(z) = log(1 + exp(z)), is positive everywhere. Linear attention needs
# nothing else of phi: positive features give positive weights. In saccade this attention is called
# `performer_ftheta`.

# %%
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
D, K, M = 16, 64, 32  # length of a query, width of the network, number of features


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
ours = ftheta_mlp(x, *parameters, eps=0.0) * M**0.5  # ours are divided by sqrt(M)
torch.testing.assert_close(ours, phi(x))

# %% [markdown]
# ## Teaching it softmax
#
# How much can such a small network learn? We show it random queries and keys, and train it to
# imitate the weights of softmax. The loss is the Kullback-Leibler divergence, which measures how
# far a row of weights is from the row of softmax. The scores have a standard deviation of 2, where
# random features fail.


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
# Now we compare the network with the other two ways and with equal weights for all keys. It has not
# seen these queries and keys before. The measure is the share of attention on wrong keys, as in
# lesson 10.

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
    axes[1:], (before, after, exact), ("before training", "after training", "softmax"), strict=True
):
    axis.imshow(shown[0, 0, :32, :32], vmin=0, vmax=0.3, cmap="inferno")
    axis.set(title=name, xlabel="32 keys", ylabel="32 queries", xticks=[], yticks=[])
plt.show()

# %% [markdown]
# The pictures show the weights of 32 queries (rows) for 32 keys (columns); brighter is larger.
# Before training, all weights are nearly equal. With the same number of features, learned features
# do better than random ones, which for such scores are no better than equal weights. Taylor does
# better still, with 153 fixed features. None of them makes weights as sharp as those of softmax: 32
# positive features cannot single out one of very many keys. [Lesson 12](12-limits.md) measures
# this.
#
# In a real model the features need not imitate softmax. They are trained with all other parameters
# to predict the labels. The price is time: the network runs for every query and every key. In our
# comparison on CIFAR-10 `performer_ftheta` reaches 88.84 %, softmax 89.40 %, and an epoch takes
# 2.13 s against 0.76 s ([results](../results.md#nine-attentions-in-one-vit)).
#
# ## Exercise
#
# Leave out softplus, so that features may be negative. What goes wrong? Look at the weights, and at
# their sum, by which attention divides.


# %% tags=["answer"]
class Signed(LearnedFeatures):
    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x * D**-0.25)))


products = Signed()(q_test) @ Signed()(k_test).mT
totals = products.sum(dim=-1)
print(f"{float((products < 0).float().mean()):.0%} of the weights are negative")

assert (products < 0).any()  # a negative weight
assert totals.abs().min() < totals.abs().mean() / 50  # and a sum near zero
