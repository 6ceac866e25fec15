# %% [markdown]
# # 10. Random features and Performer
#
# [Lesson 9](09-taylor.md) made attention linear by replacing the exponential. Can we keep the
# exponential and still have linear time? We need vectors phi(q) and phi(k) whose scalar product is
# exp(q.k). No finite vectors do this exactly. But *random* ones do it on average.
#
# ## The identity
#
# Draw a vector w of Gaussian numbers. Then
#
#     E[ exp(w.q - |q|^2/2) exp(w.k - |k|^2/2) ] = exp(q.k)
#
# The reason: w.(q + k) is a Gaussian number with variance |q + k|^2, and the mean of exp of such a
# number is exp(|q + k|^2 / 2). Subtract |q|^2/2 and |k|^2/2, and q.k remains. The formula has two
# separate factors, one of q and one of k. With M draws, each factor is a vector of M features.

# %%
import torch

torch.manual_seed(0)
q, k = torch.randn(2, 16, dtype=torch.float64) * 0.4
w = torch.randn(100_000, 16, dtype=torch.float64)
estimate = ((w @ q - q @ q / 2).exp() * (w @ k - k @ k / 2).exp()).mean()
print(f"exp(q.k) = {float((q @ k).exp()):.4f}, mean of 100,000 draws = {float(estimate):.4f}")

assert abs(estimate / (q @ k).exp() - 1) < 0.02

# %% [markdown]
# ## Performer by hand
#
# The rest is known from lesson 9: features of all keys, one sum over the keys, one product for each
# query. The features are positive, so the weights are, too. Subtracting the largest exponent keeps
# the exponential from overflowing; it cancels when the row is normalized.


# %%
def features(x, w, shared_maximum):
    x = x * x.shape[-1] ** -0.25  # half of the division by sqrt(D)
    exponent = x @ w.T - x.square().sum(dim=-1, keepdim=True) / 2
    top = exponent.amax(dim=(-2, -1) if shared_maximum else -1, keepdim=True)
    return (exponent - top).exp()


def performer(q, k, v, w):
    phi_q, phi_k = features(q, w, False), features(k, w, True)  # keys must share their maximum
    state, total = phi_k.mT @ v, phi_k.sum(dim=-2)[..., None]
    return phi_q @ state / (phi_q @ total)


from saccade.ops.linear import orthogonal_projection, performer_attention

q, k, v = torch.randn(3, 1, 1, 100, 16, dtype=torch.float64)
w = orthogonal_projection(64, 16, seed=0).double()
ours = performer_attention(q, k, v, w, feature_map="favor_softmax", eps=0.0)
torch.testing.assert_close(ours, performer(q, k, v, w), rtol=1e-3, atol=1e-4)

# %% [markdown]
# (Ours adds a millionth to every feature, so that none is zero. Hence the tolerance.)
#
# ## Orthogonal draws
#
# Two random vectors may happen to point in nearly the same direction, and then the second adds
# little. It is better to make them orthogonal, in blocks of D, and to give them the lengths that
# Gaussian vectors have. Then every block covers all directions.

# %%
block = w[:16]
products = block @ block.T
print(
    "largest product of two different rows:",
    f"{float((products - products.diag().diag()).abs().max()):.0e}",
)

assert torch.allclose(products, products.diag().diag(), atol=1e-5)

# %% [markdown]
# ## How good is the estimate?
#
# We count the share of a query's attention that is on the wrong keys. The answer depends on the
# number of features M, but far more on the size of the scores.


# %%
def misplaced(size, m, orthogonal=True, draws=8):
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 128, 32, generator=generator) * size**0.5
    exact = (q @ k.mT / 32**0.5).softmax(dim=-1)
    found = []
    for seed in range(draws):
        w = orthogonal_projection(m, 32, seed=seed)
        if not orthogonal:
            w = torch.randn(m, 32, generator=torch.Generator().manual_seed(seed))
        weights = features(q, w, False) @ features(k, w, True).mT
        weights = weights / weights.sum(dim=-1, keepdim=True)
        found.append((weights - exact).abs().sum(dim=-1).mean() / 2)
    return float(torch.stack(found).median())


counts = [8, 32, 128, 512, 2048]
curves = {size: [misplaced(size, m) for m in counts] for size in (0.125, 0.5, 1.0, 2.0)}
plain = [misplaced(0.125, m, orthogonal=False) for m in counts]
print({size: f"{curve[-1]:.1%}" for size, curve in curves.items()})

assert curves[0.125][-1] < 0.05 < 0.2 < curves[1.0][-1]

# %% tags=["picture"] alt="share of misplaced attention over the number of features: it falls like one over the root of M for small scores and hardly at all for large ones"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for size, curve in curves.items():
    axes.plot(counts, curve, "o-", label=f"scores of size {size:g}")
axes.plot(counts, plain, "o:", color="C0", label="0.125, rows not orthogonal")
axes.set(xscale="log", yscale="log", xlabel="random features M", ylabel="attention on wrong keys")
axes.legend(fontsize="small")
plt.show()

# %% [markdown]
# For small scores the error falls like 1/sqrt(M), as for any mean of M draws. For scores of size 1,
# two thousand features still misplace a third, and at 2 the method fails. The reason is in the
# identity: the mean of exp of a Gaussian number comes from rare, very large draws. If |q + k| is
# large, they are so rare that no practical M sees them.
#
# So why do Performers work? Because a model that is trained as a Performer does not need softmax.
# It needs *some* positive weights that it can learn to use. In our comparison on CIFAR-10, random
# features of simpler curves (ReLU, GELU) do better than FAVOR+, which estimates softmax
# ([results](../results.md#nine-attentions-in-one-vit)). A model that was trained with softmax is
# different: its scores were learned for softmax, and if they are large, a Performer in its place
# gives other outputs.
#
# ## Exercise
#
# An older idea uses waves: cos(w.(q - k)) also has a mean that leads to exp(q.k). Estimate
# exp(q.k) = exp(|q|^2/2 + |k|^2/2) E[cos(w.(q - k))] for opposite vectors k = -q of length 2, many
# times with M = 64. How often is the estimated weight negative?

# %% tags=["answer"]
q = torch.zeros(16)
q[0] = 2.0
k = -q  # exp(q.k) = exp(-4) = 0.018
w = torch.randn(1000, 64, 16)  # 1,000 estimates of 64 draws
waves = (q @ q / 2 + k @ k / 2).exp() * (w @ (q - k)).cos().mean(dim=1)
positive = ((w @ q - q @ q / 2).exp() * (w @ k - k @ k / 2).exp()).mean(dim=1)
print(f"negative: {float((waves < 0).float().mean()):.0%} of the waves, none of the exponentials")

assert (waves < 0).float().mean() > 0.3  # a negative weight makes a division by zero possible
assert (positive > 0).all()
