"""The equations of Linformer, Nyström and agent attention, literal, in the dtype of the inputs.

Each takes q (B, H, N, D), k (B, H, S, D), v (B, H, S, E) and a mask (B, S) of the keys. For Nyström
and agent attention queries and keys are of the same tokens, and the mask is used for both.
"""

import torch
from torch import Tensor

__all__ = [
    "agent_reference",
    "linformer_reference",
    "means_reference",
    "nystrom_reference",
    "runs_reference",
]


def linformer_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_projection: Tensor,
    value_projection: Tensor,
    *,
    scale: float,
    key_mask: Tensor | None = None,
) -> Tensor:
    """softmax(scale q (E k)') F v, with the first S columns of E and F, (R, longest)."""
    if key_mask is not None:
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (k, v))
    keys = torch.einsum("rs,bhsd->bhrd", key_projection[:, : k.shape[2]], k)
    values = torch.einsum("rs,bhse->bhre", value_projection[:, : k.shape[2]], v)
    weights = torch.softmax(scale * torch.einsum("bhnd,bhrd->bhnr", q, keys), dim=-1)
    return torch.einsum("bhnr,bhre->bhne", weights, values)


def runs_reference(x: Tensor, count: int) -> Tensor:
    """Means of the tokens floor(r n / m) to ceil((r + 1) n / m) - 1, (H, n, D) -> (H, m, D)."""
    n = x.shape[1]
    bounds = [(r * n // count, -(-(r + 1) * n // count)) for r in range(count)]
    return torch.stack([x[:, first:last].mean(dim=1) for first, last in bounds], dim=1)


def means_reference(x: Tensor, count: int, key_mask: Tensor | None) -> Tensor:
    """`runs_reference` of the attended tokens of each sample; 0 for a sample without any."""
    rows = []
    for sample in range(x.shape[0]):
        own = x[sample] if key_mask is None else x[sample][:, key_mask[sample]]
        empty = x.new_zeros(x.shape[1], count, x.shape[3])
        rows.append(runs_reference(own, count) if own.shape[1] else empty)
    return torch.stack(rows)


def agent_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_agents: int,
    scale: float,
    key_mask: Tensor | None = None,
) -> Tensor:
    """softmax(scale q A') softmax(scale A k') v, A the means of runs of queries."""

    def attend(q: Tensor, k: Tensor, v: Tensor, attended: Tensor) -> Tensor:
        agents = runs_reference(q[:, attended], num_agents)
        gathered = _softmax(agents, k[:, attended], scale) @ v[:, attended]
        return _softmax(q, agents, scale) @ gathered

    return _by_sample(attend, q, k, v, key_mask)


def nystrom_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    num_landmarks: int,
    steps: int,
    scale: float,
    key_mask: Tensor | None = None,
) -> Tensor:
    """softmax(q L') Z softmax(l k') v, l and L the means of runs of queries and keys.

    Z starts as A' / (|A|_1 |A|_inf) for A = softmax(l L') and takes `steps` times
    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, attended: Tensor) -> Tensor:
        landmark_q, landmark_k = (runs_reference(x[:, attended], num_landmarks) for x in (q, k))
        a = _softmax(landmark_q, landmark_k, scale)
        one = torch.eye(num_landmarks, dtype=a.dtype, device=a.device)
        z = a.mT / (a.sum(dim=-2).amax(dim=-1) * a.sum(dim=-1).amax(dim=-1))[:, None, None]
        for _ in range(steps):
            az = a @ z
            z = z @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
        gathered = _softmax(landmark_q, k[:, attended], scale) @ v[:, attended]
        return _softmax(q, landmark_k, scale) @ z @ gathered

    return _by_sample(attend, q, k, v, key_mask)


def _softmax(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return torch.softmax(scale * torch.einsum("hnd,hsd->hns", q, k), dim=-1)


def _by_sample(attend: object, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """Attend with each sample's own tokens; a sample that masks every key gets 0."""
    assert callable(attend)
    everything = torch.ones(k.shape[2], dtype=torch.bool, device=k.device)
    rows = []
    for sample in range(q.shape[0]):
        attended = everything if key_mask is None else key_mask[sample]
        if attended.any():
            rows.append(attend(q[sample], k[sample], v[sample], attended))
        else:
            rows.append(v.new_zeros(*q.shape[1:3], v.shape[3]))
    return torch.stack(rows)
