# %% [markdown]
# # 1. Patches and the linear map
#
# A transformer reads a list of vectors, called *tokens*. A photograph is not a list. So the first
# layer of a vision transformer turns a photograph into one: it cuts the image into small squares,
# the *patches*, and maps each patch to a vector.
#
# We start with one real image: a cat from the test set of CIFAR-10.

# %%
import torch

from saccade.data import sample_images

torch.manual_seed(0)
images, labels, names = sample_images()  # 40 images, uint8
index = 12
image = images[index].float() / 255  # numbers from 0 to 1
print(names[labels[index]], tuple(image.shape))

# %% [markdown]
# Three color channels, 32 rows, 32 columns. A patch of 4 x 4 pixels has 3 * 4 * 4 = 48 numbers, and
# there are 8 x 8 = 64 such patches.
#
# Cutting needs no loop. Split each side in two: which patch, and which pixel inside the patch. Then
# bring the two "which patch" axes to the front.

# %%
P = 4  # side of a patch

patches = image.reshape(3, 32 // P, P, 32 // P, P)  # channel, patch row, row, patch column, column
patches = patches.permute(1, 3, 0, 2, 4)  # patch row, patch column, channel, row, column
patches = patches.reshape(64, 3 * P * P)  # one row for each patch
print(tuple(patches.shape))

assert torch.equal(patches[0].reshape(3, P, P), image[:, :4, :4])  # top left
assert torch.equal(patches[9].reshape(3, P, P), image[:, 4:8, 4:8])  # second row, second column

# %% tags=["picture"] alt="a cat, the same image cut into 8 by 8 patches, and the 64 patches as rows of a table"
import matplotlib.pyplot as plt

figure = plt.figure(figsize=(9, 3.2), layout="constrained")
left, middle, right = figure.subfigures(1, 3)
axes = left.subplots()
axes.imshow(image.permute(1, 2, 0))
axes.set_title("the image, 32 x 32")
for patch, axis in zip(patches, middle.subplots(8, 8).flat, strict=True):
    axis.imshow(patch.reshape(3, P, P).permute(1, 2, 0), vmin=0, vmax=1)
    axis.axis("off")
middle.suptitle("64 patches of 4 x 4", fontsize="large")
table = right.subplots()
table.imshow(patches, cmap="gray", aspect="auto")
table.set(title="the same as a list", ylabel="patch", xlabel="48 numbers")
plt.show()

# %% [markdown]
# ## The linear map
#
# The 48 raw numbers describe a patch poorly, and the width of the transformer should not depend on
# the size of a patch. So one linear layer maps every patch to a vector of width C. It is the same
# layer for all patches.

# %%
C = 48  # width of the model; here it happens to be the size of a patch
embed = torch.nn.Linear(3 * P * P, C)
tokens = embed(patches)  # (64, 48) -> (64, C)
print(tuple(tokens.shape))

# %% [markdown]
# That is the whole first layer. Libraries write it in another way: as a convolution with a kernel
# of 4 x 4 pixels and a stride of 4. The kernel meets each patch exactly once, so it computes the
# same sums. We give our weights to the first layer of a real model and compare.

# %%
import saccade

model = saccade.create_model("vit_micro_patch4_32")
stem = model.patch_embed
print(stem.proj)
with torch.no_grad():
    stem.proj.weight.copy_(embed.weight.reshape(C, 3, P, P))
    stem.proj.bias.copy_(embed.bias)

torch.testing.assert_close(stem(image[None])[0], tokens)  # the same 64 tokens

# %% [markdown]
# The list is short: 64 tokens instead of 1,024 pixels. This matters, because attention compares
# every token with every other. But the list no longer says which patches are neighbors: nothing in
# it tells that patch 9 lies below patch 1. [Chapter 3](03-positions.md) adds that.
#
# ## Exercise
#
# Patches of 8 x 8 pixels: how many tokens are there, and how many numbers does each hold? How many
# comparisons does attention save? Change the model and check.

# %% tags=["answer"]
coarse = saccade.create_model("vit_micro_patch4_32", patch_size=8)
few = coarse.patch_embed(image[None])[0]
print(tuple(few.shape), coarse.patch_embed.proj.weight[0].numel())

assert len(few) == (32 // 8) ** 2 == 16  # a quarter of the tokens
assert coarse.patch_embed.proj.weight[0].numel() == 3 * 8 * 8  # four times the numbers
assert len(tokens) ** 2 // len(few) ** 2 == 16  # a sixteenth of the comparisons
