# %% [markdown]
# # 4. Attention
#
# So far every token describes one patch. Attention lets tokens exchange information. From each
# token the model computes three vectors: a *query*, which says what the token looks for, a *key*,
# by which other tokens find it, and a *value*, which it passes on. Each query is compared with all
# keys. The better a key matches, the more its value counts. The output for a query is a weighted
# average of all values. D is the length of a query and of a key:
#
#     scores   s_ij = q_i . k_j / sqrt(D)
#     weights  w_ij = exp(s_ij) / sum_j exp(s_ij)
#     output   o_i  = sum_j w_ij v_j
#
# The exponential makes the weights positive, and the division makes the weights of each query sum
# to 1. These two steps together are called *softmax*. In code:

# %%
import torch

torch.manual_seed(0)


def attention(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5  # k.mT: the last two axes swapped
    weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
    return weights @ v, weights


q, k, v = torch.randn(3, 1, 1, 64, 16)  # (B, H, N, D): images, heads (lesson 5), tokens, length
out, weights = attention(q, k, v)

from saccade import softmax_attention

torch.testing.assert_close(softmax_attention(q, k, v), out)  # ours is the same
torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 1, 64))
assert (weights > 0).all()

# %% [markdown]
# ## Seeing it work
#
# In a trained model, linear layers compute queries and keys, and their weights are learned. But
# attention works on any vectors, so we try it on raw pixels. The query and the key of a patch are
# both its 48 pixel values, minus the mean of the image, scaled to length 1. The value is the patch
# itself. Two patches that look alike then have a high score. We multiply the scores by 6, so that
# the differences show.

# %%
from saccade.data import sample_images

images, labels, names = sample_images()
ship = images[33].float() / 255
patches = ship.reshape(3, 8, 4, 8, 4).permute(1, 3, 0, 2, 4).reshape(64, 48)
unit = torch.nn.functional.normalize(patches - patches.mean(), dim=1)
mixed, weights = attention(6 * unit * 48**0.5, unit, patches)  # the factor cancels sqrt(D)
asked = (11, 27)  # two patches, whose queries we look at
print(names[labels[33]], {f"patch {i}": f"largest weight {weights[i].max():.2f}" for i in asked})

assert weights[asked[0]].argmax() == asked[0]  # its own key matches best

# %% tags=["picture"] alt="a photograph of a ship, the patches that one patch of the sky attends to, which are sky, and those that one patch of the ship attends to"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 4, figsize=(10, 2.7), layout="constrained")
axes[0].imshow(ship.permute(1, 2, 0))
axes[0].set_title("image")
for axis, i in zip(axes[1:3], asked, strict=True):
    axis.imshow(ship.permute(1, 2, 0), alpha=0.35, extent=(0, 8, 8, 0))
    axis.imshow(weights[i].reshape(8, 8), cmap="inferno", alpha=0.7, extent=(0, 8, 8, 0))
    axis.add_patch(plt.Rectangle((i % 8, i // 8), 1, 1, fill=False, color="cyan", lw=2))
    axis.set_title(f"patch {i} attends to")
output = mixed.reshape(8, 8, 3, 4, 4).permute(0, 3, 1, 4, 2).reshape(32, 32, 3)
axes[3].imshow(output.clamp(0, 1))
axes[3].set_title("all 64 outputs")
for axis in axes:
    axis.axis("off")
plt.show()

# %% [markdown]
# Patch 11, in the sky, attends mostly to the sky, and a little to the bright hull. Patch 27, on the
# hull, attends to the rest of the hull. The last picture shows all outputs: each patch is replaced
# by an average of patches that look like it. So one attention carries information across the whole
# image. Convolutions of 3 x 3 pixels would need many layers for that.
#
# ## Why divide by sqrt(D)?
#
# A score is a sum of D products. If the numbers in q and k have variance 1, the score has variance
# D. With D = 256 its standard deviation is 16, and exp(16) is nine million. One key then gets
# nearly all of the weight, and the gradients of the other scores vanish. Dividing by sqrt(D) brings
# the variance back to 1.

# %% tags=["picture"] alt="the largest weight among 64 keys over the head dimension: near one without the division by the root of D, small and constant with it"
dims = [4, 16, 64, 256, 1024]
largest = {"divided by sqrt(D)": [], "not divided": []}
for dim in dims:
    q, k = torch.randn(1000, dim), torch.randn(64, dim)
    scores = q @ k.T  # (1000 queries, 64 keys)
    for (name, found), factor in zip(largest.items(), (dim**-0.5, 1.0), strict=True):
        found.append(float((scores * factor).softmax(dim=1).amax(dim=1).mean()))
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, found in largest.items():
    axes.plot(dims, found, "o-", label=name)
axes.set(xscale="log", xlabel="D", ylabel="largest of 64 weights (mean)", ylim=(0, 1))
axes.legend()
plt.show()

# %% [markdown]
# ## Exercise
#
# `softmax_attention` has an argument `scale`, by which it multiplies q . k. What does each query
# get if the scale is very large? And if it is 0?

# %% tags=["answer"]
q, k, v = torch.randn(3, 1, 1, 64, 16)
sharp = softmax_attention(q, k, v, scale=1e6)
nearest = v[0, 0, (q @ k.mT)[0, 0].argmax(dim=1)]
torch.testing.assert_close(sharp[0, 0], nearest)  # the value of the best key: a lookup in a table

flat = softmax_attention(q, k, v, scale=0.0)
torch.testing.assert_close(
    flat, v.mean(dim=2, keepdim=True).expand_as(flat)
)  # the mean of all values
