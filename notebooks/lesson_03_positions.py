# %% [markdown]
# # 3. Positions
#
# Attention treats its tokens as a set: their order does not matter. If we shuffle the patches of an
# image, the class token still collects the same sum from them. We check this with a model that has
# no positions. It cannot tell a truck from a shuffled truck.

# %%
import torch

import saccade
from saccade.data import sample_images

torch.manual_seed(0)
images, labels, names = sample_images()
truck = images[36:37].float() / 255
print(names[labels[36]])

order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
cells = truck.reshape(3, 8, 4, 8, 4).permute(1, 3, 0, 2, 4).flatten(0, 1)  # 64 patches, lesson 1
shuffled = cells[order].reshape(8, 8, 3, 4, 4).permute(2, 0, 3, 1, 4).reshape(1, 3, 32, 32)

unordered = saccade.create_model("vit_micro_patch4_32", pos_embed="none").eval()
torch.testing.assert_close(unordered(truck), unordered(shuffled))  # the same logits

# %% [markdown]
# The remedy is to add a vector to each token. This vector depends only on the position of the
# token. Then equal patches at different positions become different tokens.
#
# Where do these vectors come from? One answer is a table with a row for each position, which the
# model learns like any other parameter. The other answer is a formula. The classic formula uses
# sine waves, from short to long ones. Channel 2i of position p is sin(p / 10000^(2i/C)), and
# channel 2i + 1 is the cosine of the same number. Short waves tell neighbors apart, long waves tell
# distant positions apart.


# %%
def waves(length, dim):
    position = torch.arange(length, dtype=torch.float64)[:, None]
    speed = 10000.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    table = torch.empty(length, dim, dtype=torch.float64)
    table[:, 0::2] = (position * speed).sin()
    table[:, 1::2] = (position * speed).cos()
    return table.float()


C = 48
line = waves(65, C)  # class token and 64 patches, counted row by row

by_formula = saccade.create_model("vit_micro_patch4_32", pos_embed="sinusoidal_1d").eval()
torch.testing.assert_close(by_formula.pos_embed[0], line)  # ours is the same

assert not torch.allclose(by_formula(truck), by_formula(shuffled))  # the order now matters

# %% [markdown]
# Counting row by row has a flaw. Patch 9 lies directly below patch 1, but their numbers are 8
# apart. On a grid it is better to use half of the channels for the row and the other half for the
# column.

# %%
rows, columns = waves(8, C // 2)[:, None], waves(8, C // 2)[None]
grid = torch.cat([rows.expand(8, 8, -1), columns.expand(8, 8, -1)], dim=-1).flatten(0, 1)

plane = saccade.create_model("vit_micro_patch4_32", pos_embed="sinusoidal_2d")
torch.testing.assert_close(plane.pos_embed[0, 1:], grid)  # entry 0 is the class token's: zeros

# %% tags=["picture"] alt="a truck, the shuffled truck, the table of waves, and the similarity of one position with all others: a stripe for the row-by-row count, a round spot for the grid"
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 5, figsize=(11, 2.6), layout="constrained")
axes[0].imshow(truck[0].permute(1, 2, 0))
axes[0].set_title("a truck")
axes[1].imshow(shuffled[0].permute(1, 2, 0))
axes[1].set_title("the same set of patches")
axes[2].imshow(line[1:], aspect="auto", cmap="coolwarm")
axes[2].set_title("table of waves")
for axis, table, name in ((axes[3], line[1:], "row by row"), (axes[4], grid, "on the grid")):
    unit = torch.nn.functional.normalize(table, dim=1)
    axis.imshow((unit @ unit[27]).reshape(8, 8), cmap="viridis")
    axis.plot(3, 3, "o", color="red")
    axis.set_title(f"similarity, {name}")
for axis in axes:
    axis.axis("off")
plt.show()

# %% [markdown]
# The table in the middle has one position per row and one channel per column. The two pictures on
# the right compare positions. The brighter a patch, the more similar is its vector to the vector of
# the patch with the red dot. Counted row by row, only positions in the same row are similar, and
# not those directly above and below. On the grid, near positions are similar in every direction.
#
# A learned table starts at random. In large models that were trained on many images, its
# similarities come to look like the picture on the right (arXiv:2010.11929, figure 7), although
# nobody told the model that patches form a grid.
#
# ## Exercise
#
# A model was trained on 32 x 32 images and now gets images of 64 x 64. What happens to a table of
# waves, and what to a learned table? Try `set_input_size(64)`.

# %% tags=["answer"]
plane.set_input_size(64)  # waves are a formula: they are computed for the new 16 x 16 grid
learned = saccade.create_model("vit_micro_patch4_32")
before = learned.pos_embed.detach().clone()
learned.set_input_size(64)  # a table has no rows for new positions: it is resized like an image
print(tuple(plane.pos_embed.shape), tuple(learned.pos_embed.shape))

stretched = torch.nn.functional.interpolate(
    before[:, 1:].reshape(1, 8, 8, C).permute(0, 3, 1, 2), size=16, mode="bicubic", antialias=True
)
torch.testing.assert_close(learned.pos_embed[0, 1:], stretched[0].flatten(1).T)
