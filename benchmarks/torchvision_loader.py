"""The usual CPU loader, for comparison: Pillow images, torchvision's transforms, worker processes.

The augmentations are those of a recipe's `augment` section; mixup and cutmix take one weight for a
whole batch, in the collate function, as is usual.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from saccade.config import AugmentConfig
from saccade.data import DatasetInfo, Split


class PillowImages(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """torchvision's way: each image becomes a Pillow image, then a tensor."""

    def __init__(self, split: Split, info: DatasetInfo, augment: AugmentConfig) -> None:
        from torchvision import transforms

        assert split.images is not None
        self.pixels = split.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = split.labels.tolist()
        side = info.image_size[0]
        steps: list[Any] = [transforms.RandomCrop(side, padding=augment.crop_padding)]
        if augment.flip:
            steps.append(transforms.RandomHorizontalFlip())
        if augment.policy == "trivial":
            steps.append(transforms.TrivialAugmentWide())
        steps += [transforms.ToTensor(), transforms.Normalize(info.mean, info.std)]
        if augment.erase:
            area = (augment.erase / side) ** 2
            steps.append(transforms.RandomErasing(p=1.0, scale=(area, area), ratio=(1, 1)))
        self.transform = transforms.Compose(steps)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def mix_batch(
    samples: list[tuple[Tensor, int]], *, num_classes: int, alpha: float
) -> tuple[Tensor, Tensor]:
    """mixup or cutmix with the rolled batch."""
    images = torch.stack([image for image, _ in samples])
    labels = torch.tensor([label for _, label in samples])
    targets = torch.nn.functional.one_hot(labels, num_classes).float()
    weight = float(torch.distributions.Beta(alpha, alpha).sample())
    other = images.roll(1, 0)
    if torch.rand(()) < 0.5:
        images = weight * images + (1 - weight) * other
    else:
        size = images.shape[-1]
        side = int(size * (1 - weight) ** 0.5)
        top, left = (int(torch.randint(0, size + 1 - side, ())) for _ in range(2))
        box = (slice(None), slice(None), slice(top, top + side), slice(left, left + side))
        images[box] = other[box]
        weight = 1 - side * side / size**2
    return images, weight * targets + (1 - weight) * targets.roll(1, 0)


def cpu_loader(
    split: Split,
    info: DatasetInfo,
    augment: AugmentConfig,
    *,
    batch_size: int,
    workers: int,
    pin: bool,
) -> torch.utils.data.DataLoader[Any]:
    """torch's own loader over such images, set up as for training."""
    return torch.utils.data.DataLoader(
        PillowImages(split, info, augment),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        collate_fn=partial(mix_batch, num_classes=info.num_classes, alpha=augment.cutmix),
        pin_memory=pin,
        persistent_workers=workers > 0,
    )
