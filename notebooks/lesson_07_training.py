# %% [markdown]
# # 7. The head and the training
#
# All parts are there. The *head* is one linear layer: it reads the class token and gives the
# logits, one number for each class. (This head has nothing to do with the heads of attention.) Here
# is the whole vision transformer.

# %%
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        outputs = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
        x = x + self.proj(outputs.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, side=8, patch=2, channels=1, dim=48, depth=3, heads=4, classes=10):
        super().__init__()
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


# %% [markdown]
# The data are 1,797 handwritten digits of 8 x 8 pixels. They come with scikit-learn, so there is
# nothing to download. `load_splits` divides them into training, validation and test images. We
# subtract the mean and divide by the standard deviation of the training images.

# %%
from saccade.config import DataConfig
from saccade.data import load_splits

splits = load_splits(DataConfig(name="digits"))
mean, std = splits.info.mean[0], splits.info.std[0]
(x, y), (x_test, y_test) = (
    ((split.images / 255 - mean) / std, split.labels) for split in (splits.train, splits.test)
)
print(tuple(x.shape), tuple(x_test.shape))

# %% [markdown]
# Training is a loop: take a batch of 64 images, compute the logits, measure their error (the
# cross-entropy), compute the gradient of the error, and let the optimizer AdamW change the
# parameters a little. The learning rate says how much. It rises first and then falls to zero.


# %%
def fit(x, y, epochs=15, batch=64):
    torch.manual_seed(0)
    model, losses, steps = ViT(), [], len(x) // batch
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5e-3, total_steps=epochs * steps
    )
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(batch)[:steps]:
            loss = F.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return model.eval(), losses


model, losses = fit(x, y)
with torch.no_grad():
    predicted = model(x_test).argmax(dim=1)
accuracy = (predicted == y_test).float().mean()
print(f"{accuracy:.1%} of {len(y_test)} test images are right")

assert accuracy > 0.92

# %% tags=["picture"] alt="the loss falls over the steps of the training; beside it, digits that the model gets wrong, each with its prediction"
import matplotlib.pyplot as plt

wrong = (predicted != y_test).nonzero()[:6, 0]
figure = plt.figure(figsize=(9, 3), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
axes = left.subplots()
axes.plot(losses, lw=0.8)
axes.set(title="loss of each batch", xlabel="step", ylabel="cross-entropy", yscale="log")
right.suptitle("mistakes on the test set")
for axis, i in zip(right.subplots(2, 3).flat, wrong.tolist(), strict=False):
    axis.imshow(x_test[i, 0], cmap="gray_r")
    axis.set_title(f"{y_test[i]}, not {predicted[i]}", fontsize="medium")
    axis.axis("off")
plt.show()

# %% [markdown]
# ## Ours is the same
#
# We build the same model by name, copy the trained parameters, and get the same logits. Only some
# names of parameters differ.

# %%
import saccade

ours = saccade.create_model(
    "vit_micro_patch4_32", img_size=8, patch_size=2, in_chans=1, depth=3, act="gelu"
).eval()
renamed = {
    "embed": "patch_embed.proj",
    "qkv": "attn.qkv",
    "proj": "attn.proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
state = {}
for name, value in model.state_dict().items():  # such as blocks.0.qkv.weight
    state[".".join(renamed.get(part, part) for part in name.split("."))] = value
ours.load_state_dict(state)

torch.testing.assert_close(ours(x_test), model(x_test))

# %% [markdown]
# `saccade train` does more than this loop: it measures the accuracy on validation images, saves
# checkpoints, continues an interrupted run exactly where it stopped, and stops if the loss is no
# longer a number. This command trains a model on the digits:
#
#     saccade train digits-quick --out runs/digits
#
# `saccade train vit-micro-cifar10 --out runs/cifar` trains the model of lessons 1 to 3 on CIFAR-10,
# after `saccade data fetch cifar10`. It reaches 78.5 % in 100 epochs
# ([results](../results.md#cifar-10-from-scratch)).
#
# ## Exercise
#
# Which digits does the model confuse? Count the mistakes for each digit. Then shuffle the pixels:
# choose one random order and apply it to all images, of the training and the test set. Train again.
# How much accuracy is lost?

# %% tags=["answer"]
errors = torch.bincount(y_test[predicted != y_test], minlength=10)
print("mistakes for 0 to 9:", errors.tolist())

order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
mixed, mixed_test = (pixels.flatten(1)[:, order].view_as(pixels) for pixels in (x, x_test))
other, _ = fit(mixed, y)
with torch.no_grad():
    shuffled = (other(mixed_test).argmax(dim=1) == y_test).float().mean()
print(f"{shuffled:.1%} with shuffled pixels")

# To a person the shuffled images are noise, but the model loses little accuracy. The linear map does
# not know which pixels of a patch are neighbors, and the table of positions is learned. What changes
# is only which pixels share a patch.
assert errors.sum() == round((1 - float(accuracy)) * len(y_test))
assert 0.8 < shuffled < accuracy + 0.02
