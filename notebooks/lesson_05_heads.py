# %% [markdown]
# # 5. Heads
#
# One attention compares patches in one way. Several ways are useful: by color, for example, or by
# the direction of an edge. So the width C is split into H parts, the *heads*. Each head has its own
# queries, keys and values of width D = C / H, and does its own attention. The answers are put side
# by side again, and a last linear layer mixes them.

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
    weights = (q @ k.mT / D**0.5).softmax(dim=-1)  # (B, H, N, N): one map for each head
    answers = (weights @ v).transpose(1, 2).reshape(batch, tokens, C)  # heads side by side
    return proj(answers), weights


x = torch.randn(2, 65, C)
out, weights = multi_head_attention(x)
print(tuple(out.shape), tuple(weights.shape))

# %% [markdown]
# Our layer has the same two linear layers under the same names. We copy the weights and compare the
# output and the maps.

# %%
import saccade

layer = saccade.MultiHeadAttention(C, num_heads=H, attention="softmax")
layer.qkv.load_state_dict(qkv.state_dict())
layer.proj.load_state_dict(proj.state_dict())

torch.testing.assert_close(layer(x), out)
torch.testing.assert_close(layer.attention_weights(x), weights)

# %% [markdown]
# The heads cost nothing extra. Four heads of width 12 do the same number of multiplications as one
# head of width 48, and they have the same parameters. There is one restriction: column 3 of a query
# is never multiplied with column 30 of a key.

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
# What a head compares in a trained model is learned, and is not always clear. So we build three
# heads for which we know it. Head 1 sees the red channel of each patch, head 2 the green, head 3
# the blue. Each compares the patches by what it sees.

# %%
from saccade.data import sample_images

images, labels, names = sample_images()
bird = images[11].float() / 255
patches = bird.reshape(3, 8, 4, 8, 4).permute(0, 1, 3, 2, 4).reshape(3, 64, 16)  # head, N, D
centered = patches - patches.mean(dim=(1, 2), keepdim=True)
maps = (centered @ centered.mT * 6).softmax(dim=-1)  # (3, 64, 64)
asked = 20

# %% tags=["picture"] alt="a photograph of a yellow bird, and what one patch attends to in the head that sees red, the one that sees green and the one that sees blue"
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
# The same patch gets three different answers. To the head that sees red, the bird and the twigs are
# alike. The head that sees blue finds the rest of the bird: yellow has no blue. The last linear
# layer learns how to combine the answers.
#
# ## Exercise
#
# Remove a head: set its part of the answers to zero. Which columns of `proj.weight` have the same
# effect if they are set to zero? Check it for head 2.

# %% tags=["answer"]
head = 2
with torch.no_grad():
    layer.proj.weight[:, head * D : (head + 1) * D] = 0  # its columns read head 2
    q, k, v = layer.heads(x)
    answers = layer.attend(q, k, v)  # (B, H, N, D)
    answers[:, head] = 0
    by_hand = proj(answers.transpose(1, 2).flatten(2))
torch.testing.assert_close(layer(x), by_hand)
