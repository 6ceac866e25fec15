# %% [markdown]
# # 1. Patches and the linear map
#
# A transformer reads a list of vectors, called *tokens*. An image is not a list of vectors, but a
# grid of pixels. So the first layer of a vision transformer makes a list of it: it cuts the image
# into small squares, the *patches*, and maps each patch to a vector.
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
# The image has three color channels, 32 rows and 32 columns. A patch of 4 x 4 pixels has 3 * 4 * 4
# = 48 numbers, and there are 8 x 8 = 64 such patches.
#
# Cutting needs no loop. `reshape` splits the 32 rows into 8 groups of 4 rows, and the 32 columns
# into 8 groups of 4 columns. `permute` brings the two axes that count the groups to the front.

# %%
P = 4  # side of a patch

# axes: channel, patch row, row in the patch, patch column, column in the patch
patches = image.reshape(3, 32 // P, P, 32 // P, P)
patches = patches.permute(1, 3, 0, 2, 4)  # patch row, patch column, channel, row, column
patches = patches.reshape(64, 3 * P * P)  # one patch per row
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
table.set(
    title="the 64 patches as a list", ylabel="patch", xlabel="its 48 numbers: red, green, blue"
)
plt.show()

# %% [markdown]
# ## The linear map
#
# All layers that follow work with vectors of one length C, the *width* of the model. C is a free
# choice: it need not be 48. So one linear layer maps the 48 numbers of a patch to C numbers. It is
# the same layer for all patches.

# %%
C = 48  # the width of our small model; it is 48 by chance
embed = torch.nn.Linear(3 * P * P, C)
tokens = embed(patches)  # (64, 48) -> (64, C)
print(tuple(tokens.shape))

# %% [markdown]
# That is the whole first layer. Libraries write it as a convolution: a filter of 4 x 4 pixels
# (`kernel_size`) that moves by 4 pixels (`stride`). So the filter meets each patch exactly once and
# computes the same sums. To compare, we copy our weights into the first layer of a model of
# saccade.

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
# every token with every other. But attention ignores the order of the list, and nothing in a token
# says where its patch lies. [Lesson 3](03-positions.md) adds the positions.
#
# ## Exercise
#
# Cut the image into patches of 8 x 8 pixels. How many tokens are there, and how many numbers does
# each patch have? Attention compares all pairs of tokens: how many times fewer pairs are there?
# Build the model with `patch_size=8` and check.

# %% tags=["answer"]
coarse = saccade.create_model("vit_micro_patch4_32", patch_size=8)
few = coarse.patch_embed(image[None])[0]
print(tuple(few.shape), coarse.patch_embed.proj.weight[0].numel())

assert len(few) == (32 // 8) ** 2 == 16  # a quarter of the tokens
assert coarse.patch_embed.proj.weight[0].numel() == 3 * 8 * 8  # four times the numbers
assert len(tokens) ** 2 // len(few) ** 2 == 16  # a sixteenth of the pairs
