"""Names that are suggested for one that is unknown."""

import pytest

from saccade.errors import near_matches

KEYS = [
    *("train.epochs", "train.device", "train.precision", "train.ema_decay", "data.root"),
    *("augment.flip", "augment.mixup", "augment.erase"),
]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("train.epoch", ["train.epochs"]),
        ("trian.epochs", ["train.epochs"]),
        ("train.ema", ["train.ema_decay"]),
        ("data.rot", ["data.root"]),
        ("train.zzz", []),
        ("augment.zzz", []),
    ],
)
def test_only_names_that_are_near_are_suggested(name: str, near: list[str]) -> None:
    assert near_matches(name, KEYS) == near


def test_names_that_are_equally_near_are_all_suggested() -> None:
    known = ["taylorshift-vit-s", "taylorshift-vit-m", "digits-quick"]
    assert sorted(near_matches("taylorshift-vit", known)) == sorted(known[:2])
