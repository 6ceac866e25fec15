"""Overlays and the statistics of maps."""

import math

import numpy as np
import pytest
import torch

from saccade.errors import ConfigError
from saccade.explain import overlay
from saccade.explain.explanation import spread
from saccade.explain.foreground import mass_on_foreground
from saccade.explain.maps import describe_map, relative_to_uniform


def test_statistics_of_a_uniform_and_a_one_hot_map() -> None:
    even = describe_map(torch.full((17,), 1 / 17), (4, 4))
    assert even["entropy"] == pytest.approx(math.log(17))
    assert even["relative_entropy"] == pytest.approx(1)
    assert even["class_token"] == pytest.approx(1 / 17)
    assert even["center"] == pytest.approx([0.5, 0.5])
    assert even["half_mass"] == 0.5
    one = describe_map(torch.zeros(16).index_fill(0, torch.tensor(6), 2.0), (4, 4))
    assert one == {
        "entropy": 0,
        "relative_entropy": 0,
        "class_token": 0,
        "center": pytest.approx([0.375, 0.625]),
        "peak": [1, 2],
        "half_mass": 1 / 16,
    }


def test_relative_weights_are_multiples_of_uniform_weights() -> None:
    weights = torch.tensor([0.5, 0.25, 0.25, 0.0])
    assert relative_to_uniform(weights, weights[1:]).tolist() == [1, 1, 0]


def test_mass_on_a_mask_is_counted_in_pixels() -> None:
    masks = torch.zeros(2, 4, 4, dtype=torch.bool)
    masks[:, :2, :1] = True  # half of the first patch of 2 x 2
    patches = torch.tensor([[[0.25, 0.25], [0.25, 0.25]], [[3.0, 1.0], [0.0, 0.0]]])
    assert mass_on_foreground(patches, masks).tolist() == [0.125, 0.375]
    assert mass_on_foreground(0 * patches, masks).tolist() == [0.125, 0.125]


def test_opacity_blends_image_and_map() -> None:
    image = torch.rand(3, 8, 8)
    weights = torch.zeros(4, 4)
    weights[1, 2] = 1
    alone = overlay(image, weights, size=64, opacity=0)
    assert np.array_equal(alone[::8, ::8], (255 * image).round().byte().permute(1, 2, 0).numpy())
    light = overlay(torch.full_like(image, 0.3), weights, size=64).sum(axis=2, dtype=int)
    assert light[24, 40] == light.max() > 3 * light[48, 8]
    only = overlay(image, weights, size=64, opacity=1)
    assert (only[:, :8] == only[0, 0]).all()
    assert overlay(torch.rand(1, 6, 12), torch.rand(2, 4), size=64).shape == (32, 64, 3)


def test_limits_give_several_maps_one_color_scale() -> None:
    image, weights = torch.rand(1, 8, 8), torch.rand(4, 4)
    own = overlay(image, weights)
    assert np.array_equal(own, overlay(image, 4 * weights))
    limits = (float(weights.min()), float(weights.max()))
    assert np.array_equal(own, overlay(image, weights, limits=limits))
    assert not np.array_equal(own, overlay(image, weights / 4, limits=limits))


@pytest.mark.parametrize(
    ("image", "weights", "options", "message"),
    [
        (torch.rand(2, 8, 8), torch.rand(4, 4), {}, "image must be a tensor of shape"),
        (torch.rand(3, 8, 8), torch.rand(1, 4, 4), {}, "weights must be a tensor of shape"),
        (
            torch.rand(3, 8, 8),
            torch.rand(4, 4),
            {"opacity": 2},
            r"opacity must be a number in \[0, 1\], got 2",
        ),
    ],
)
def test_bad_arguments_of_overlay_are_refused(image, weights, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        overlay(image, weights, **options)


def test_spread_selects_layers_from_first_to_last() -> None:
    assert [spread(depth) for depth in (1, 3, 4, 12)] == [
        [0],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 4, 7, 11],
    ]
