# %% [markdown]
# # 12. When not to use linear attention
#
# Lessons 9 to 11 showed the advantages of linear time. This lesson shows its limits: three
# objections, what is known about each, and what we measured.
#
# ## Objection 1: fast and exact is impossible
#
# Alman and Song (arXiv:2302.13214) proved the following for heads of about log N columns, under a
# conjecture of complexity theory (the Strong Exponential Time Hypothesis). If the entries of q and
# k may be as large as sqrt(log N), no algorithm that is truly faster than N^2 computes softmax
# attention precisely. If they are smaller by more than any constant factor, a nearly linear
# algorithm exists. It replaces the exponential by a polynomial, as lesson 9 does.
#
# So linear attention is close to softmax only while scores are small. The question for a task is
# whether it needs large scores. Large scores select one key and suppress all others.
#
# ## Objection 2: it cannot find a needle
#
# Hide one key that matches the query among N that do not. How much of the attention does it get? Say
# the needle has score s and the others have 0.

# %%
import torch

torch.manual_seed(0)


def needle(weight, s, others):
    """The share of a key with score s among others with score 0."""
    hit, miss = weight(torch.tensor(s)), weight(torch.tensor(0.0))
    return float(hit / (hit + others * miss))


def taylor(s):
    return 1 + s + s**2 / 2


for s in (1.0, 4.0, 12.0):
    print(
        f"s = {s:g}: softmax {needle(torch.exp, s, 1000):.1%}, Taylor {needle(taylor, s, 1000):.1%}"
    )

assert needle(torch.exp, 12.0, 1000) > 0.99
assert needle(taylor, 12.0, 1000) < 0.1

# %% [markdown]
# With 1,000 others, softmax needs a score of about 7 to give the needle half of the attention. The
# polynomial needs a score of about 44. TaylorShift bounds its scores by a learned temperature tau:
# the largest weight is 1 + tau + tau^2/2 and the smallest 1/2, so with tau = 1 no key gets more
# than five times the weight of another. It can average many tokens. It cannot look up one of many.
#
# ## How much fits into the state?
#
# A second limit is the size of the state. Softmax keeps all keys. Linear attention keeps only their
# sum, a table of F rows, whatever N is. We store N random pairs of key and value and ask for each
# value by its key. All three attentions get the same scores.

# %%
from saccade.ops.linear import favor_softmax, orthogonal_projection
from saccade.ops.softmax import softmax_weights
from saccade.ops.taylor import num_features, taylor_weights

D = 16
counts = [4, 16, 64, 256, 1024]
w = orthogonal_projection(num_features(D), D, seed=0)  # as many random features as Taylor has


def recall(rows, choices):
    """The share of queries whose own value is the nearest to what they got."""
    return float(
        (torch.cdist(rows @ choices, choices).argmin(dim=1) == torch.arange(len(rows)))
        .float()
        .mean()
    )


found = {
    "softmax": [],
    f"Taylor, {num_features(D)} features": [],
    f"FAVOR+, {num_features(D)} features": [],
}
for n in counts:
    keys = 8 * torch.nn.functional.normalize(torch.randn(1, 1, n, D), dim=-1)  # own score: 16
    values = torch.randn(n, D)
    phi = favor_softmax(keys, w, is_query=True), favor_softmax(keys, w, is_query=False)
    random_rows = (phi[0] @ phi[1].mT)[0, 0]
    rows = [
        softmax_weights(keys, keys)[0, 0],
        taylor_weights(keys, keys)[0, 0],
        random_rows / random_rows.sum(dim=1, keepdim=True),
    ]
    for curve, row in zip(found.values(), rows, strict=True):
        curve.append(recall(row, values))
for name, curve in found.items():
    print(name, [f"{value:.0%}" for value in curve])

assert found["softmax"][-1] > 0.9
assert all(curve[-1] < 0.5 for name, curve in found.items() if name != "softmax")

# %% tags=["picture"] alt="left: the share of a needle among 1000 keys over its score, for softmax and Taylor; right: the share of values that are found again over the number of stored pairs"
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
scores = torch.linspace(0, 20, 100)
left.plot(scores, [needle(torch.exp, float(s), 1000) for s in scores], label="softmax")
left.plot(scores, [needle(taylor, float(s), 1000) for s in scores], label="Taylor")
left.set(title="attention on one needle among 1,000", xlabel="score of the needle")
left.yaxis.set_major_formatter("{x:.0%}")
left.legend()
for name, curve in found.items():
    right.plot(counts, curve, "o-", label=name)
right.set(xscale="log", title="values found again", xlabel="stored pairs", ylim=(0, 1.05))
right.yaxis.set_major_formatter("{x:.0%}")
right.legend()
plt.show()

# %% [markdown]
# Softmax finds every value again. The others fail long before the number of pairs reaches the
# number of features. Taylor attention has another problem: where a score is far below -1, its
# parabola is high again, and a key that points the other way disturbs the answer. These keys are
# random. A trained model learns keys that suit its attention: in a recall task of the Hedgehog
# paper (arXiv:2402.04347), a model trained with Taylor attention reached 100 %, and models with ELU
# features, Performer or cosFormer 17 %.
#
# For language models this has been measured. Between attention and gated convolutions, 82 % of the
# difference in perplexity is explained by recall: finding again what appeared earlier in the text
# (arXiv:2312.04927). A larger state recalls more, and linear attention together with attention in a
# sliding window comes closer to full attention (arXiv:2402.18668).
#
# Images need less recall. Neighboring patches contain nearly the same, so that an average over many
# is often useful. In our comparison on CIFAR-10, Taylor attention and softmax reach the same
# accuracy within the scatter of seeds ([results](../results.md#nine-attentions-in-one-vit)). But
# CIFAR-10 is small, and no result on it proves the same for detection or for reading text in
# images. Measure on your own data: [`saccade compare`](../compare.md) does it fairly.
#
# ## Objection 3: the sequences are short
#
# Linear time has a price for each token, F features of width D. Below a certain N, the square is
# cheaper. Measured on one H200, in bfloat16, with our fused kernels, linear time overtakes the
# fastest softmax from these numbers of tokens ([source](../results.md#attention-on-one-h200); the
# kernels have become faster since):
#
# | head dim D | 16 | 32 | 64 | 128 |
# |---|---|---|---|---|
# | tokens | 142 | 614 | 2,637 | 15,506 |
#
# A ViT at 224 x 224 pixels has 197 tokens and D = 64. There, linear time is slower. And attention
# is only a part of a model: the linear layers and the MLP cost the same whatever the attention.
# With a whole ViT-S the gain was 1.22 times at 4,096 tokens and 3.3 times at 16,384.

# %%
from saccade import create_model
from saccade.ops.taylor import explain_choice

model = create_model("vit_small_patch16_224", attention="taylorshift")
print(explain_choice(197, head_dim=64).reason)

for side in (224, 512, 1024):
    tokens = (side // 16) ** 2 + 1
    block = model.blocks[0]
    print(
        f"{side} px: core {block.attn.core.flops(tokens) / block.attn.flops(tokens):.0%} of the attention layer"
    )

assert explain_choice(197, head_dim=64).algorithm == "direct"

# %% [markdown]
# ## A rule of thumb
#
# Use softmax if sequences are short, if a pretrained model must keep its outputs, or if the task is
# to look things up. Use Taylor attention if there are thousands of tokens and small heads (D <= 32),
# and if you train from scratch anyway. Where you are not sure, compare.
#
# ## Exercise
#
# What head dimension would you choose for a model of width 384 at 4,096 tokens, if you want linear
# time to pay? List the crossings for 3, 6, 12 and 24 heads, by operations.

# %% tags=["answer"]
from saccade.ops.taylor import speed_threshold

crossings = {heads: speed_threshold(384 // heads, symmetric=True) for heads in (3, 6, 12, 24)}
print(crossings)

assert crossings[6] < 4096 < crossings[3]  # 6 heads of 64 suffice; 12 heads of 32 gain far more
