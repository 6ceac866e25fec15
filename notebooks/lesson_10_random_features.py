# %% [markdown]
# # 10. Random features and Performer
#
# [Lesson 9](09-taylor.md) made attention linear by replacing the exponential. Can we keep the
# exponential and still have linear time? We need features phi with phi(q).phi(k) = exp(q.k) for all
# q and k. No finite number of features does this exactly. But *random* features do it on average.
#
# ## The identity
#
# Draw a vector w of independent Gaussian numbers with mean 0 and variance 1. Then, on average over
# w (E[...] is the mean),
#
#     E[ exp(w.q - |q|^2/2) exp(w.k - |k|^2/2) ] = exp(q.k)
#
# The reason: w.(q + k) is a Gaussian number with mean 0 and variance |q + k|^2. The mean of the
# exponential of such a number is exp(|q + k|^2 / 2). Since |q + k|^2 = |q|^2 + |k|^2 + 2 q.k, only
# q.k remains after subtracting |q|^2/2 and |k|^2/2. The formula is a product of a factor that knows
# only q and a factor that knows only k. M draws of w make M factors of each kind: the features of q
# and of k.

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
# The rest is as in lesson 9: compute the features of all keys, sum over the keys once, and multiply
# with the features of each query. The features are positive, and so are the weights. We subtract
# the largest exponent, so that no exponential overflows. This multiplies all weights of a query by
# the same number, which cancels when we divide by their sum. A query may subtract its own largest
# exponent. The keys must share one, or their weights would change relative to each other.


# %%
def features(x, w, shared_maximum):
    x = x * x.shape[-1] ** -0.25  # half of the division by sqrt(D)
    exponent = x @ w.T - x.square().sum(dim=-1, keepdim=True) / 2
    top = exponent.amax(dim=(-2, -1) if shared_maximum else -1, keepdim=True)
    return (exponent - top).exp()


def performer(q, k, v, w):
    phi_q, phi_k = features(q, w, False), features(k, w, True)  # one maximum for all keys
    state, total = phi_k.mT @ v, phi_k.sum(dim=-2)[..., None]
    return phi_q @ state / (phi_q @ total)


from saccade.ops.linear import orthogonal_projection, performer_attention

q, k, v = torch.randn(3, 1, 1, 100, 16, dtype=torch.float64)
w = orthogonal_projection(64, 16, seed=0).double()
ours = performer_attention(q, k, v, w, feature_map="favor_softmax", eps=0.0)
torch.testing.assert_close(ours, performer(q, k, v, w), rtol=1e-3, atol=1e-4)

# %% [markdown]
# (saccade adds a millionth to every feature, so that none is zero. So the outputs are equal only up
# to the tolerance `rtol` and `atol`.)
#
# ## Orthogonal draws
#
# Two random vectors may point in nearly the same direction. Then the second one adds little
# information. Performer makes the rows of w orthogonal, in blocks of D rows, and gives them random
# lengths like those of Gaussian vectors. Then every block covers all directions.

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
# We compare with exact softmax as in lesson 9: which share of a query's attention lies on the wrong
# keys? The answer depends on the number of features M, but far more on the *size* of the scores,
# their standard deviation.


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

# %% tags=["picture"] alt="share of attention on wrong keys over the number of features M: it falls like one over the root of M for small scores and slowly for large ones"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for size, curve in curves.items():
    axes.plot(counts, curve, "o-", label=f"scores of size {size:g}")
axes.plot(counts, plain, "o:", color="C0", label="size 0.125, rows not orthogonal")
axes.set(xscale="log", yscale="log", xlabel="random features M", ylabel="attention on wrong keys")
axes.legend(fontsize="small")
plt.show()

# %% [markdown]
# For small scores the error falls like 1/sqrt(M), as it does for any mean of M draws. For scores of
# size 1, two thousand features still put a third of the attention on the wrong keys, and for size 2
# more than half. The identity shows why. The mean of the exponential of a Gaussian number comes
# mostly from rare, very large draws. If |q + k| is large, they are so rare that even thousands of
# draws contain none.
#
# So why do Performers work? A model that is trained as a Performer does not need softmax. It needs
# positive weights that it can learn to use. In our comparison on CIFAR-10, random features of
# simpler curves (ReLU, GELU) do better than FAVOR+, which estimates softmax
# ([results](../results.md#nine-attentions-in-one-vit)). A model that was trained with softmax is
# another matter: if its scores are large and a Performer replaces its attention, its outputs
# change.
#
# ## Exercise
#
# An older estimate uses cosines instead of exponentials: exp(q.k) = exp(|q|^2/2 + |k|^2/2)
# E[cos(w.(q - k))]. Compute it for opposite vectors k = -q of length 2, a thousand times with M =
# 64 draws each. How often is the estimated weight negative? And how often is the estimate with
# exponentials negative?

# %% tags=["answer"]
q = torch.zeros(16)
q[0] = 2.0
k = -q  # exp(q.k) = exp(-4) = 0.018
w = torch.randn(1000, 64, 16)  # 1,000 estimates of 64 draws
cosines = (q @ q / 2 + k @ k / 2).exp() * (w @ (q - k)).cos().mean(dim=1)
exponentials = ((w @ q - q @ q / 2).exp() * (w @ k - k @ k / 2).exp()).mean(dim=1)
print(f"negative: {float((cosines < 0).float().mean()):.0%} with cosines, none with exponentials")

assert (cosines < 0).float().mean() > 0.3  # with negative weights, their sum may be zero
assert (exponentials > 0).all()
