# %% [markdown]
# # 5. Heads
#
# One attention compares patches in one way. A model needs several ways: one may compare colors,
# another the directions of edges. So the width C is split into H equal parts, the *heads*. Each
# head has its own queries, keys and values of length D = C / H and computes attention with them.
# The outputs of the heads are concatenated, and a last linear layer mixes them.

# %%
import torch

torch.manual_seed(0)
C, H = 48, 4
D = C // H
qkv = torch.nn.Linear(C, 3 * C)  # queries, keys and values of all heads at once
proj = torch.nn.Linear(C, C)


def multi_head_attention(x):
    batch, tokens, _ = x.shape
    q, k, v = qkv(x).reshape(batch, tokens, 3, H, D).permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
    weights = (q @ k.mT / D**0.5).softmax(dim=-1)  # (B, H, N, N): weights of each head
    outputs = (weights @ v).transpose(1, 2).reshape(batch, tokens, C)  # heads concatenated
    return proj(outputs), weights


x = torch.randn(2, 65, C)
out, weights = multi_head_attention(x)
print(tuple(out.shape), tuple(weights.shape))

# %% [markdown]
# The layer of saccade has the same two linear layers under the same names. We copy the parameters
# and compare the output and the attention weights.

# %%
import saccade

layer = saccade.MultiHeadAttention(C, num_heads=H, attention="softmax")
layer.qkv.load_state_dict(qkv.state_dict())
layer.proj.load_state_dict(proj.state_dict())

torch.testing.assert_close(layer(x), out)
torch.testing.assert_close(layer.attention_weights(x), weights)

# %% [markdown]
# More heads do not need more parameters or more multiplications: four heads of length 12 need as
# many as one head of length 48. (Only the exponentials are four times as many.) But each head
# compares fewer numbers. The third number of a query belongs to the first head, and the thirtieth
# number of a key to the third head, so these two are never multiplied.

# %%
one, four = (
    saccade.MultiHeadAttention(C, num_heads=heads, attention="softmax") for heads in (1, 4)
)
print(f"{one.flops(65):,} FLOPs with one head, {four.flops(65):,} with four")

assert one.flops(65) == four.flops(65)
assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in four.parameters())

# %% [markdown]
# ## Three heads that we can understand
#
# What a head of a trained model compares is often hard to say. So we build three heads by hand. The
# first sees only the red channel of each patch, the second only the green, the third only the blue.
# Queries and keys are made from the pixels as in [lesson 4](04-attention.md).

# %%
from saccade.data import sample_images

images, labels, names = sample_images()
bird = images[11].float() / 255
patches = bird.reshape(3, 8, 4, 8, 4).permute(0, 1, 3, 2, 4).reshape(3, 64, 16)  # head, N, D
centered = patches - patches.mean(dim=(1, 2), keepdim=True)
unit = torch.nn.functional.normalize(centered, dim=-1)
maps = (unit @ unit.mT * 4).softmax(dim=-1)  # (3, 64, 64)
asked = 52  # a patch of a twig

# %% tags=["picture"] alt="a photograph of a yellow bird on brown twigs, and what one patch of a twig attends to: mostly twigs in the head that sees red, bird and twigs alike in the head that sees blue"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained")
axes[0].imshow(bird.permute(1, 2, 0), extent=(0, 8, 8, 0))
axes[0].set_title(f"{names[labels[11]]}, patch {asked}")
for axis, weights, color in zip(axes[1:], maps, ("red", "green", "blue"), strict=True):
    axis.imshow(weights[asked].reshape(8, 8), cmap="inferno", extent=(0, 8, 8, 0))
    axis.set_title(f"the head that sees {color}")
for axis in axes:
    axis.add_patch(plt.Rectangle((asked % 8, asked // 8), 1, 1, fill=False, color="cyan", lw=2))
    axis.axis("off")
plt.show()

# %% [markdown]
# The same patch gets three different outputs. The head that sees red attends mostly to the twigs,
# which have the most red. The head that sees blue attends to the bird and the twigs alike and tells
# them from the sky: brown and yellow have little blue. The head that sees green lies in between.
# The last linear layer learns how to combine the outputs.
#
# ## Exercise
#
# Remove a head: set its part of the concatenated outputs to zero. Setting some columns of
# `proj.weight` to zero has the same effect. Which columns? Check it for the third head.

# %% tags=["answer"]
head = 2  # counted from 0
with torch.no_grad():
    layer.proj.weight[:, head * D : (head + 1) * D] = 0  # these columns multiply its output
    q, k, v = layer.heads(x)
    outputs = layer.attend(q, k, v)  # (B, H, N, D)
    outputs[:, head] = 0
    by_hand = proj(outputs.transpose(1, 2).flatten(2))
torch.testing.assert_close(layer(x), by_hand)
