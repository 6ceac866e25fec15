# %% [markdown]
# # 4. Attention
#
# So far every token describes one patch. Attention lets tokens exchange information. Three vectors
# are computed from each token: a *query*, which says what the token looks for, a *key*, by which
# other tokens find it, and a *value*, which it passes on. A query is compared with all keys. The
# better they match, the more the value counts. The answer is a weighted average of the values:
#
#     scores   s_ij = q_i . k_j / sqrt(D)
#     weights  w_ij = exp(s_ij) / sum_j exp(s_ij)
#     answer   o_i  = sum_j w_ij v_j
#
# The exponential makes the weights positive, and the division makes each row sum to 1. Both steps
# together are called *softmax*. Four lines of code:

# %%
import torch

torch.manual_seed(0)


def attention(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
    return weights @ v, weights


q, k, v = torch.randn(3, 1, 1, 64, 16)  # batch, heads, tokens, columns
out, weights = attention(q, k, v)

from saccade import softmax_attention

torch.testing.assert_close(softmax_attention(q, k, v), out)  # ours is the same
torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 1, 64))
assert (weights > 0).all()

# %% [markdown]
# ## Seeing it work
#
# In a trained model, queries and keys are learned. But attention works on any vectors, so we can
# try it on raw pixels. Query and key are the pixels of a patch, minus the mean of the image, with
# length 1. The value is the patch itself. A score is then high if two patches look alike. We
# multiply scores by 6, so that the differences show.

# %%
from saccade.data import sample_images

images, labels, names = sample_images()
ship = images[33].float() / 255
patches = ship.reshape(3, 8, 4, 8, 4).permute(1, 3, 0, 2, 4).reshape(64, 48)
unit = torch.nn.functional.normalize(patches - patches.mean(), dim=1)
mixed, weights = attention(6 * unit * 48**0.5, unit, patches)  # the factor cancels sqrt(D)
asked = (11, 27)  # two queries
print(names[labels[33]], [f"{float(weights[i].max()):.2f}" for i in asked])

assert weights[asked[0]].argmax() == asked[0]  # nothing is as similar as the patch itself

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
answer = mixed.reshape(8, 8, 3, 4, 4).permute(0, 3, 1, 4, 2).reshape(32, 32, 3)
axes[3].imshow(answer.clamp(0, 1))
axes[3].set_title("all 64 answers")
for axis in axes:
    axis.axis("off")
plt.show()

# %% [markdown]
# The patch of the sky attends to the sky. The patch of the ship attends to the rest of the white
# hull. The last image shows all answers: each patch is replaced by an average of similar patches.
# One step carries information across the whole image. A convolution of 3 x 3 pixels would need many
# layers for that.
#
# ## Why divide by sqrt(D)?
#
# A score is a sum of D products. If the columns of q and k have variance 1, the score has variance
# D. With D = 256 a typical score is 16, and exp(16) is nine million: one key gets nearly all of the
# weight, and the gradient of the others vanishes. Dividing by sqrt(D) brings the variance back to
# 1.

# %% tags=["picture"] alt="the largest weight among 64 keys over the head dimension: near one without the division by the root of D, small and constant with it"
dims = [4, 16, 64, 256, 1024]
largest = {"divided by sqrt(D)": [], "not divided": []}
for dim in dims:
    q, k = torch.randn(2, 1000, dim)
    scores = (q[:, None] @ k.reshape(1000, dim).T[None, :, :64])[:, 0]  # 1000 queries, 64 keys
    for (name, found), factor in zip(largest.items(), (dim**-0.5, 1.0), strict=True):
        found.append(float((scores * factor).softmax(dim=1).amax(dim=1).mean()))
figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for name, found in largest.items():
    axes.plot(dims, found, "o-", label=name)
axes.set(xscale="log", xlabel="D", ylabel="largest of 64 weights", ylim=(0, 1))
axes.legend()
plt.show()

# %% [markdown]
# ## Exercise
#
# Multiply the scores by a large number, and by 0. What does each query get?

# %% tags=["answer"]
q, k, v = torch.randn(3, 1, 1, 64, 16)
sharp = softmax_attention(q, k, v, scale=1e6)
nearest = v[0, 0, (q @ k.mT)[0, 0].argmax(dim=1)]
torch.testing.assert_close(sharp[0, 0], nearest)  # the value of the best key: a lookup

flat = softmax_attention(q, k, v, scale=0.0)
torch.testing.assert_close(flat, v.mean(dim=2, keepdim=True).expand_as(flat))  # the mean of all
