# %% [markdown]
# # 12. When not to use linear attention
#
# Lessons 9 to 11 made attention linear. This lesson shows what that costs: three objections to
# linear attention, what is known about each, and what we measured.
#
# ## Objection 1: fast and exact is impossible
#
# Alman and Song (arXiv:2302.13214) studied how fast softmax attention can be computed precisely,
# for heads of about log N columns. Their proof assumes a conjecture of complexity theory (the
# Strong Exponential Time Hypothesis). There are two cases. If the numbers in q and k may be as
# large as sqrt(log N), no algorithm is truly faster than N^2. If they are much smaller than that, a
# nearly linear algorithm exists. It replaces the exponential by a polynomial, as lesson 9 does.
#
# So an attention in linear time can be close to softmax only while scores are small. Large scores
# select one key and suppress all others. Does your task need such a selection? That is the
# question.
#
# ## Objection 2: it cannot find a needle
#
# Suppose one key, the needle, matches the query, and N others do not. How much of the attention
# does the needle get? Let its score be s and the scores of the others 0.

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
# With 1,000 other keys, softmax needs a score of about 7 to give the needle half of the attention.
# The polynomial needs a score of about 44. TaylorShift cannot reach it: its scores are at most its
# temperature tau. The largest possible weight is 1 + tau + tau^2/2 and the smallest 1/2. With tau =
# 1, no key gets more than five times the weight of another. Such an attention can average many
# tokens, but it cannot look up one of many.
#
# ## How much fits into the state?
#
# A second limit is memory. Softmax keeps all keys and values. Linear attention keeps only a sum
# over them, a table of F rows, however large N is. How many pairs of key and value fit into it? We
# store N random pairs and ask for each value with its key as the query. All three attentions get
# the same scores.

# %%
from saccade.ops.linear import favor_softmax, orthogonal_projection
from saccade.ops.softmax import softmax_weights
from saccade.ops.taylor import num_features, taylor_weights

D = 16
counts = [4, 16, 64, 256, 1024]
w = orthogonal_projection(num_features(D), D, seed=0)  # as many random features as Taylor has


def recall(weights, values):
    """The share of queries whose output is nearest to their own value."""
    nearest = torch.cdist(weights @ values, values).argmin(dim=1)
    return float((nearest == torch.arange(len(values))).float().mean())


found = {
    "softmax": [],
    f"Taylor, {num_features(D)} features": [],
    f"FAVOR+, {num_features(D)} features": [],
}
for n in counts:
    keys = 8 * torch.nn.functional.normalize(
        torch.randn(1, 1, n, D), dim=-1
    )  # own score: 8 * 8 / 4
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
# Softmax finds every value again. The others fail long before there are as many pairs as features.
# Taylor attention has a problem of its own: where a score is far below -1, its parabola is large
# again. Then a key that points away from the query disturbs the output. These keys are random. A
# trained model learns keys that suit its attention. In a recall task of the Hedgehog paper
# (arXiv:2402.04347), a model trained with Taylor attention reached 100 %, and models with ELU
# features, Performer or cosFormer 17 %.
#
# For language models it has been measured how much recall matters, that is, finding again what
# appeared earlier in the text. Models with gated convolutions instead of attention have a higher
# perplexity: they predict text less well. Recall explains 82 % of the difference
# (arXiv:2312.04927). Two remedies bring linear attention closer to full attention: a larger state,
# and additional attention in a sliding window (arXiv:2402.18668).
#
# Images need less recall. Neighboring patches look nearly the same, so an average over many is
# often useful. In our comparison on CIFAR-10, Taylor attention and softmax reach the same accuracy
# within the differences between seeds ([results](../results.md#nine-attentions-in-one-vit)). But
# CIFAR-10 is small. It proves nothing about detection, or about reading text in images. Measure on
# your own data: [`saccade compare`](../compare.md) compares fairly.
#
# ## Objection 3: the sequences are short
#
# In linear time, each token costs a fixed amount: F features times D columns. Below a certain N,
# the quadratic cost is lower. We measured on one H200, in bfloat16, with our fused kernels. Linear
# time is faster than the fastest softmax from these numbers of tokens
# ([source](../results.md#attention-on-one-h200); the kernels have become faster since):
#
# | head dim D | 16 | 32 | 64 | 128 |
# |---|---|---|---|---|
# | tokens | 142 | 614 | 2,637 | 15,506 |
#
# A ViT for images of 224 x 224 pixels has 197 tokens and D = 64. There, linear time is slower.
# Besides, attention is only a part of a model: the linear layers and the MLP take the same time
# with any attention. The speed-up of a training step of a whole ViT-S was 1.22 times at 4,096
# tokens and 3.3 times at 16,384.
#
# For larger and larger images, the code prints how much of an attention layer is the attention
# itself. The rest are the linear layers before and after it.

# %%
from saccade import create_model
from saccade.ops.taylor import explain_choice

model = create_model("vit_small_patch16_224", attention="taylorshift")
print(explain_choice(197, head_dim=64).reason)

for side in (224, 512, 1024):
    tokens = (side // 16) ** 2 + 1
    block = model.blocks[0]
    share = block.attn.core.flops(tokens) / block.attn.flops(tokens)
    print(f"{side} px, {tokens} tokens: {share:.0%} of the operations of an attention layer")

assert explain_choice(197, head_dim=64).algorithm == "direct"

# %% [markdown]
# ## A rule of thumb
#
# - Use softmax if sequences are short, if a pretrained model must keep its outputs, or if the task is
#   to look things up.
# - Use Taylor attention if there are thousands of tokens, heads are small (D <= 32), and you train
#   from scratch anyway.
# - If you are not sure, compare.
#
# ## Exercise
#
# A model has width 384 and 4,096 tokens. How many heads should it have, if linear time is to pay?
# List the number of tokens N0 from which linear time needs fewer operations, for 3, 6, 12 and 24
# heads.

# %% tags=["answer"]
from saccade.ops.taylor import speed_threshold

crossings = {heads: speed_threshold(384 // heads, symmetric=True) for heads in (3, 6, 12, 24)}
print(crossings)

assert crossings[6] < 4096 < crossings[3]  # 6 heads suffice; 12 gain more
