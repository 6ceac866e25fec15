"""Search spaces: drawn values, refused settings, and trials without the test set."""

import re
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from saccade.config import TuneConfig, load_config, make_config
from saccade.errors import ConfigError
from saccade.study.tuning.space import check_space, draw, grid, trial_config
from tests.data.pictures import good_folder
from tests.study.tiny_search import tiny_search
from tests.train.tiny_runs import tiny


def drawn(*overrides: str, count: int = 40) -> list[dict[str, Any]]:
    config = tiny(*overrides)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [draw(study.ask(), config.search) for _ in range(count)]


def test_fractions_on_a_logarithmic_scale() -> None:
    values = [d["optim.lr"] for d in drawn("search.optim.lr={low: 1e-4, high: 1.0, log: true}")]
    assert all(1e-4 <= value <= 1 for value in values)
    assert 10 <= sum(value < 1e-2 for value in values) <= 30  # half of them, but for chance


def test_whole_numbers_and_steps() -> None:
    whole = drawn("search.model.overrides.depth={low: 1, high: 6, step: 2}")
    assert {d["model.overrides.depth"] for d in whole} == {1, 3, 5}
    steps = drawn("search.model.overrides.drop_path_rate={low: 0.0, high: 0.31, step: 0.1}")
    assert {round(d["model.overrides.drop_path_rate"], 9) for d in steps} == {0, 0.1, 0.2, 0.3}


def test_choices_of_any_kind_come_back_as_they_were() -> None:
    values = drawn("search.optim.betas=[[0.9, 0.99], [0.8, 0.95]]", "search.augment.flip=[true]")
    assert sorted({tuple(d["optim.betas"]) for d in values}) == [(0.8, 0.95), (0.9, 0.99)]
    assert {d["augment.flip"] for d in values} == {True}
    assert all(isinstance(trial_config(tiny(), d).augment.flip, bool) for d in values)


def test_grid_has_every_combination_once_in_the_order_of_the_seed() -> None:
    space = ("search.optim.lr=[0.1, 0.2]", "search.model.overrides.depth={low: 1, high: 3}")
    points = grid(tiny(*space))
    assert len({tuple(point.values()) for point in points}) == len(points) == 6
    assert grid(tiny(*space)) == points
    assert grid(tiny(*space, "run.seed=1")) != points


def test_trial_config_has_no_search_and_no_test() -> None:
    config = trial_config(tiny_search(), {"optim.lr": 0.5, "model.overrides.depth": 2})
    assert config.optim.lr == 0.5
    assert config.model.overrides["depth"] == 2
    assert not config.run.test
    assert config.search == {}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("search.optim.lrr=[1]", ["'optim.lrr'", "did you mean 'optim.lr'"]),
        ("search.lr=[1]", ["did you mean 'optim.lr'"]),
        ("search.tune.sampler=[tpe]", ["unknown key 'tune.sampler'"]),
        ("search.optim.lr=3", ["search.optim.lr=3", "{low: ..., high: ...} or a list"]),
        ("search.optim.lr=[]", ["search.optim.lr=[]", "a list of choices"]),
        ("search.optim.lr={low: a, high: 1}", ["search.optim.lr.low", "number", "'a'"]),
        (
            "search.optim.lr={low: 2, high: 1}",
            ["search.optim.lr: low must be below high=1", "got 2"],
        ),
        ("search.optim.lr={low: 0, high: 1, log: true}", ["log=true", "low > 0"]),
        ("search.optim.lr={low: 0, high: 1, step: 3}", ["step must be above 0", "got 3"]),
        ("search.optim.lr={lo: 0, high: 1}", ["search.optim.lr.lo", "low, high, log, step"]),
        ("tune.sampler=tpa", ["tune.sampler='tpa'", "'tpe', 'random' or 'grid'"]),
    ],
)
def test_invalid_search_section_is_reported(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("digits-quick", [override])
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["search.optim.lr={low: -1.0, high: 1.0}"], "greater than 0"),
        (["search.train.epochs={low: 1.5, high: 2.5}"], "valid integer"),
        (["search.model.attention=[softmaxx]"], "softmaxx"),
        (["search.model.attention=[softmax, softmaxx]"], "softmaxx"),
        (["search.model.overrides.dept=[1, 2]"], "search.model.overrides.dept"),
        (["search.data.val_fraction=[0.1, 0.2]"], "cannot be compared"),
        (["search.run.seed={low: 0, high: 9}"], "cannot be compared"),
        (["search.optim.lr=[0.1, 0.1]"], "must have different choices"),
        (["data.val_fraction=0"], "data.val_fraction must be above 0"),
        (["tune.sampler=grid"], "got a range without a step"),
    ],
)
def test_space_that_cannot_be_searched_is_refused(overrides: list[str], words: str) -> None:
    check_space(tiny_search())
    with pytest.raises(ConfigError, match=words):
        check_space(tiny_search(*overrides))


def test_values_that_depend_on_other_keys_are_accepted() -> None:
    check_space(tiny_search("search.model.overrides.num_heads=[2, 3]"))  # 3 wants a width of 24
    check_space(load_config("digits-quick"))


def test_empty_search_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to search"):
        check_space(tiny())


def test_documentation_page_is_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tune.md").read_text()
    (space,) = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    sections = yaml.safe_load(space)
    assert make_config({"tune": sections["tune"]}).tune == TuneConfig()  # they are the defaults
    check_space(make_config({**sections, "data": {"workers": 0}}))
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    assert names["results"]["best"]["params"].keys() == load_config("digits-quick").search.keys()


def test_search_accepts_a_validation_folder(tmp_path: Path) -> None:
    for part in ("train", "test"):
        good_folder(tmp_path / part)
    folder = ["data.name=folder", f"data.root={tmp_path}", "data.image_size=16"]
    config = tiny_search(*folder, "data.val_fraction=0", "data.num_train=null")
    with pytest.raises(ConfigError, match="a search needs validation images"):
        check_space(config)
    good_folder(tmp_path / "val")
    check_space(config)
