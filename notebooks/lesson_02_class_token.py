# %% [markdown]
# # 2. The class token
#
# A classifier needs one vector for the whole image. We have 64, one for each patch. Which of them
# should it read?
#
# None of them: the model adds a 65th token, the *class token*, which belongs to no patch. Its
# initial value is a parameter that the model learns. It is the same for every image. The layers
# that follow are called *blocks* ([lesson 6](06-block.md)). In each block, the class token collects
# information from the patches. After the last block, the classifier reads only this token.

# %%
import torch

import saccade
from saccade.data import sample_images

torch.manual_seed(0)
images, labels, names = sample_images()
x = images.float() / 255
model = saccade.create_model("vit_micro_patch4_32").eval()
patches = model.patch_embed(x)  # lesson 1: (images, patches, width)
print(tuple(patches.shape))

# %% [markdown]
# Adding the token takes one line: repeat it for every image, and put it in front of the patches.

# %%
C = patches.shape[-1]
class_token = torch.nn.Parameter(torch.randn(1, 1, C))

tokens = torch.cat([class_token.expand(len(patches), -1, -1), patches], dim=1)
print(tuple(tokens.shape))

with torch.no_grad():
    model.cls_token.copy_(class_token)
assert torch.equal(model.add_class_token(patches), tokens)  # ours is the same

# %% [markdown]
# After the last block, the classifier takes token 0 and ignores the others. Its outputs are called
# *logits*: one number for each class. The largest one is the prediction.

# %%
with torch.no_grad():
    features = model.forward_features(x)  # (40, 65, C), after all blocks
    logits = model.head(features[:, 0])  # the class token alone
torch.testing.assert_close(model(x), logits)

# %% [markdown]
# How can a vector that starts the same for every image tell a ship from a cat? It does not stay the
# same. We follow it through the four blocks of the model, which is not trained yet. After each
# block we measure how much it differs between the forty images: the standard deviation over the
# images, averaged over the channels.

# %%
with torch.no_grad():  # after each block: the tokens of the patches, and those before them
    _, found = model.forward_intermediates(x, return_prefix_tokens=True)
class_tokens = [tokens[:, 0].detach(), *(prefix[:, 0] for _, prefix in found)]
spread = [float(token.std(dim=0).mean()) for token in class_tokens]
print([f"{value:.3f}" for value in spread])

assert spread[0] == 0
assert spread[-1] > 0

# %% tags=["picture"] alt="the tokens of one image with the class token as the first row, and the spread of the class token over images, which grows from zero block by block"
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
shown = torch.cat([tokens[32, :1].repeat(3, 1), tokens[32, 1:]]).detach()  # 3 rows, to be seen
left.imshow(shown, aspect="auto", cmap="coolwarm", vmin=-2, vmax=2)
left.axhline(2.5, color="black")
left.set(title="65 tokens of one image", xlabel="channel", ylabel="class token, then patches")
left.set_yticks([])
right.bar(range(len(spread)), spread)
right.set(title="difference of the class token between images", xlabel="after block")
right.set_xticks(range(5), ["input", "1", "2", "3", "4"])
plt.show()

# %% [markdown]
# The left picture shows the tokens of one image, one per row; the class token is the thick row on
# top. The right picture shows the differences. At the input there are none. Every block adds some,
# because the class token takes in values of the patches of its own image. Training makes these
# differences useful.
#
# ## Exercise
#
# A model can do without a class token: it averages all patch tokens at the end. Build such a model
# with `class_token=False` and `global_pool="avg"`. How many tokens does it have? Compute its logits
# by hand. (In this model the last norm comes after the average and is called `fc_norm`.
# [Lesson 6](06-block.md) explains norms.)

# %% tags=["answer"]
mean_model = saccade.create_model(
    "vit_micro_patch4_32", class_token=False, global_pool="avg"
).eval()
with torch.no_grad():
    features = mean_model.forward_features(x)
    by_hand = mean_model.head(mean_model.fc_norm(features.mean(dim=1)))
print(tuple(features.shape))

assert features.shape[1] == 64  # no class token
torch.testing.assert_close(mean_model(x), by_hand)
