# %% [markdown]
# # 9. From softmax to Taylor to linear time
#
# Attention compares every token with every other. For N tokens, these are N x N scores. An image
# with sides twice as long has four times as many tokens and sixteen times as many scores. This
# lesson derives an attention whose cost grows only like N. It takes three steps of school algebra.
#
# ## Step 1: replace the exponential
#
# Softmax gives a key with score s the weight exp(s), and then divides by the sum of all weights.
# Near 0, the exponential is close to its Taylor polynomial:
#
#     exp(s) ~ 1 + s + s^2/2
#
# Why not use the shorter 1 + s? A weight must not be negative: the output would no longer be an
# average of values. The line 1 + s is negative for s below -1. The parabola never is:
#
#     1 + s + s^2/2 = (s + 1)^2 / 2 + 1/2  >=  1/2

# %%
import torch

torch.manual_seed(0)


def taylor_direct(q, k, v):
    s = q @ k.mT / q.shape[-1] ** 0.5
    weights = 1 + s + s**2 / 2
    return weights @ v / weights.sum(dim=-1, keepdim=True)


q, k, v = torch.randn(3, 1, 1, 200, 8, dtype=torch.float64)

from saccade import taylor_attention

out = taylor_direct(q, k, v)
torch.testing.assert_close(taylor_attention(q, k, v, algorithm="direct"), out)  # ours is the same

# %% tags=["picture"] alt="the exponential, the line and the parabola; and the share of attention that must move to turn softmax into Taylor, which grows with the size of the scores"
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
s = torch.linspace(-4, 3, 200)
left.plot(s, s.exp(), "black", label="exp(s)")
left.plot(s, 1 + s, "--", label="1 + s")
left.plot(s, 1 + s + s**2 / 2, label="1 + s + s²/2")
left.axhline(0, color="gray", lw=0.5)
left.set(xlabel="score s", ylim=(-2, 9), title="three weights of a key")
left.legend()
sizes, moved = torch.logspace(-3, 2, 21, base=2), []
for size in sizes:
    scores = torch.randn(500, 256) * size  # 500 queries, 256 keys
    taylor = 1 + scores + scores**2 / 2
    taylor = taylor / taylor.sum(dim=1, keepdim=True)
    moved.append(float((taylor - scores.softmax(dim=1)).abs().sum(dim=1).mean() / 2))
right.plot(sizes, moved, "o-")
right.set_xscale("log", base=2)
right.set(xlabel="standard deviation of the scores", title="share of attention that moves")
right.yaxis.set_major_formatter("{x:.0%}")
plt.show()

# %% [markdown]
# The left picture shows the weights. The right picture compares the two attentions: which share of
# the attention must move from some keys to others to turn softmax into Taylor? For scores with a
# standard deviation of 1 it is a tenth, for 4 it is most of it. Two remarks:
#
# - A model that is *trained* with Taylor attention adapts: it learns other scores.
# - Below -1 the parabola rises again: a key that points away from the query gets more weight.
#
# TaylorShift limits the scores, so that this matters little: it scales every query and key to
# length 1 and multiplies their product by a learned temperature tau, which starts at 1. Scores then
# stay between -tau and tau.
#
# ## Step 2: the square of a product is a product of squares
#
# So far nothing is faster. Now look at (q.k)^2. Written out, it is a sum over all pairs of columns
# i and j:
#
#     (q.k)^2 = (sum_i q_i k_i) (sum_j q_j k_j) = sum_ij (q_i q_j)(k_i k_j)
#
# This is a scalar product again, of two longer vectors. One holds all products of two columns of q,
# the other all products of two columns of k. So the whole weight is one scalar product of
# *features* phi:
#
#     1 + q.k + (q.k)^2/2 = phi(q).phi(k),     phi(x) = (1, x, x_i x_j / sqrt(2))


# %%
def phi(x):
    pairs = (x[..., :, None] * x[..., None, :]).flatten(-2) / 2**0.5
    return torch.cat([torch.ones_like(x[..., :1]), x, pairs], dim=-1)


scale = q.shape[-1] ** -0.25  # half of the division by sqrt(D) for q, half for k
phi_q, phi_k = phi(q * scale), phi(k * scale)
s = q @ k.mT / 8**0.5

torch.testing.assert_close(phi_q @ phi_k.mT, 1 + s + s**2 / 2)
print("features for D = 8:", phi_q.shape[-1])

# %% [markdown]
# ## Step 3: move the brackets
#
# The output for query i is a sum over keys. The weight is now a scalar product, so phi(q_i) can be
# taken out of the sum:
#
#     sum_j (phi(q_i).phi(k_j)) v_j  =  phi(q_i) . [ sum_j phi(k_j) v_j ]
#
# The bracket does not depend on i. We compute it once, for all queries. It is a matrix of F x D
# numbers, where F is the number of features. Its size does not depend on the number of tokens. The
# sum of the weights, by which we divide, works in the same way with 1 in place of v_j.


# %%
def taylor_linear(q, k, v):
    phi_q, phi_k = phi(q * scale), phi(k * scale)
    state = phi_k.mT @ v  # (F, D): all keys and values, once
    total = phi_k.sum(dim=-2)[..., None]  # (F, 1)
    return phi_q @ state / (phi_q @ total)


torch.testing.assert_close(taylor_linear(q, k, v), taylor_direct(q, k, v))  # the same function
torch.testing.assert_close(taylor_attention(q, k, v, algorithm="efficient"), out)

# %% [markdown]
# Steps 2 and 3 are exact. The direct form and the form in linear time compute the same function, so
# a trained model can use either one.
#
# ## Which way is cheaper?
#
# The direct form costs 4 N^2 D operations. The form in linear time costs 4 N F (D + 1), and F grows
# like D^2 / 2 (see the exercise). So linear time pays only from a certain number of tokens N0,
# which grows fast with D. saccade chooses the cheaper form and can say why:

# %%
from saccade.ops.taylor import explain_choice, num_features, speed_threshold

for tokens in (197, 4096):
    print(explain_choice(tokens, head_dim=32).reason)

# %% tags=["picture"] alt="operations of the direct and the linear form over the number of tokens, for head dimensions 16, 32 and 64; the lines cross at 153, 561 and 2145 tokens"
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
N = torch.logspace(5, 15, 50, base=2)
for D, color in ((16, "C0"), (32, "C1"), (64, "C2")):
    axes.plot(N, 4 * N**2 * D, "--", color=color)
    axes.plot(N, 4 * N * num_features(D) * (D + 1), color=color, label=f"D = {D}")
    crossing = speed_threshold(D, symmetric=True)
    axes.plot(crossing, 4 * crossing**2 * D, "o", color=color)
axes.set(xscale="log", yscale="log", xlabel="tokens N", ylabel="operations of a head")
axes.set_title("dashed: direct; solid: linear time; dots: equal")
axes.legend()
plt.show()

# %% [markdown]
# Operations are not seconds. On a GPU, softmax is a single, highly tuned kernel. The published code
# for linear time is faster than softmax only from about 17,600 tokens at D = 32. With kernels
# written for it, the crossing was at 614 tokens
# ([measured](../analyze.md#crossover-when-linear-time-pays)).
#
# ## Exercise
#
# The features phi hold both x_1 x_2 and x_2 x_1, which are equal. Keep only one of each such pair.
# By which factor must it be multiplied, so that the weight stays the same? How many features are
# left for D = 32?


# %% tags=["answer"]
def phi_symmetric(x):
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1])
    factor = torch.where(i == j, 0.5, 1.0).to(x).sqrt()  # two equal terms of 1/2 make one of 1
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., i] * x[..., j] * factor], dim=-1)


few_q, few_k = phi_symmetric(q * scale), phi_symmetric(k * scale)
torch.testing.assert_close(few_q @ few_k.mT, phi_q @ phi_k.mT)
print("features for D = 32:", num_features(32), "instead of", 1 + 32 + 32 * 32)

assert few_q.shape[-1] == num_features(8) == 45
