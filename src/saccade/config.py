"""The configuration of one run, and how YAML and overrides become one.

Every key is checked and an unknown one is refused with its nearest neighbours. Reading needs no
torch, so that a report or a `--help` stays cheap.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator

from saccade.errors import ConfigError, UnknownNameError, near_matches, reading_error
from saccade.sections import (
    CANDIDATES,
    AugmentConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    Range,
    RunConfig,
    SearchSpace,
    Section,
    TrainConfig,
    TuneConfig,
)

__all__ = [
    "CONFIG_VERSION",
    "AugmentConfig",
    "Config",
    "DataConfig",
    "ModelConfig",
    "OptimConfig",
    "Range",
    "RunConfig",
    "SearchSpace",
    "TrainConfig",
    "TuneConfig",
    "differences",
    "dump_config",
    "list_recipes",
    "load_config",
    "make_config",
    "recipe_text",
    "with_overrides",
    "with_values",
]

CONFIG_VERSION = 1


class Config(Section):
    """Everything that decides a run; `search` and `tune` are for `saccade tune` alone."""

    version: Annotated[int, Field(strict=True, ge=1)] = CONFIG_VERSION
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    run: RunConfig = RunConfig()
    search: SearchSpace = Field(default_factory=dict)
    tune: TuneConfig = TuneConfig()

    @model_validator(mode="after")
    def _searched_keys_exist(self) -> Config:
        for key in self.search:
            if not _is_key(key):
                raise ValueError(f"search: unknown key {key!r}{_hint(key)}")
        return self

    @model_validator(mode="after")
    def _sharding_is_possible(self) -> Config:
        if self.train.strategy == "fsdp":
            if self.optim.name == "muon":
                raise ValueError("optim.name='muon' needs whole matrices: use train.strategy=ddp")
            if self.train.precision == "fp16":
                raise ValueError("train.precision='fp16' with strategy='fsdp': use bf16")
        return self

    @model_validator(mode="after")
    def _validation_where_needed(self) -> Config:
        if self.data.is_without_validation and (key := self.watches_validation()):
            raise ValueError(f"{key} watches validation: data.val_fraction is 0")
        return self

    def watches_validation(self) -> str | None:
        """The key that makes the run depend on validation images, if any does."""
        if self.optim.schedule == "plateau":
            return "optim.schedule='plateau'"
        if self.train.early_stopping_patience is not None:
            return "train.early_stopping_patience"
        return None


def make_config(values: Mapping[str, Any], *, source: str = "config") -> Config:
    """Check plain values and build the configuration.

    Args:
        values: Sections, as read from YAML.
        source: Where they came from; it opens the error message.

    Raises:
        ConfigError: Names every key at fault, its value and what is accepted.
    """
    version = values.get("version", CONFIG_VERSION)
    if isinstance(version, int) and version > CONFIG_VERSION:
        raise ConfigError(
            f"{source}: version={version} was written by a newer saccade; this one reads up to "
            f"version {CONFIG_VERSION}. Upgrade saccade to use it"
        )
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{source}: {'; '.join(_explain(error))}") from None


def load_config(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a recipe by name, or a YAML file by path, and apply `section.key=value` overrides."""
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise ConfigError(f"no such config file: {str(path)!r}")
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise reading_error(path, error) from None
    elif path.exists() and str(path) not in list_recipes():
        is_folder = path.is_dir()
        kind = "a folder" if is_folder else "a file of another kind"
        wanted = "a YAML file" if is_folder else "a file that ends in .yaml or .yml"
        raise ConfigError(f"{str(path)!r} is {kind}: wants a recipe's name or {wanted}")
    else:
        text = recipe_text(str(name_or_path))
    values = _parse_yaml(text, source=str(name_or_path))
    for override in overrides:
        _apply(values, override)
    return make_config(values, source=str(name_or_path))


def with_overrides(config: Config, overrides: Iterable[str]) -> Config:
    """A copy of the configuration with `section.key=value` overrides applied."""
    values = config.model_dump(mode="json")
    for override in overrides:
        _apply(values, override)
    return make_config(values)


def with_values(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of the configuration with other values, by their dotted keys."""
    values = config.model_dump(mode="json")
    for key, value in changes.items():
        _set(values, key.split("."), value, source=key)
    return make_config(values)


def differences(before: Config, after: Config, *, ignored: Collection[str] = ()) -> list[str]:
    """The keys of a run in which two configurations differ, each with both values."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    found = []
    for key in _key_paths():
        section, _, name = key.partition(".")
        was, now = old[section][name], new[section][name]
        if was != now and section != "tune" and key not in ignored:
            found.append(f"{key} ({was!r} -> {now!r})")
    return found


def dump_config(config: Config) -> str:
    """The whole configuration as YAML, defaults written out; no `tune` without a `search`."""
    unused = set() if config.search else {"search", "tune"}
    return yaml.safe_dump(config.model_dump(mode="json", exclude=unused), sort_keys=False)


def list_recipes() -> list[str]:
    """The names of the recipes that come with saccade, sorted."""
    folder = files("saccade") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[-5:] == ".yaml")


def recipe_text(name: str) -> str:
    """A recipe's YAML as it is written, header comment included."""
    if name not in (known := list_recipes()):
        raise UnknownNameError("recipe", name, known)
    return (files("saccade") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where it is


class _StrictLoader(_SafeLoader):  # type: ignore[misc]
    """A safe YAML loader that refuses a key written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is written twice")
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


# YAML 1.1 takes 1e-4 for a word, since it misses the dot; nobody who writes it means one.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+"), list("-+0123456789")
)


def _parse_yaml(text: str, *, source: str) -> dict[str, Any]:
    try:
        values = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        raise ConfigError(f"{source}: is empty; wants sections such as data and train")
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: wants a mapping of sections, got {type(values).__name__}")
    return values


def _apply(values: dict[str, Any], override: str) -> None:
    """Set the dotted key of one `section.key=value` in nested dictionaries."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".", maxsplit=1 if key.strip().startswith("search.") else -1)
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r}: wants section.key=value")
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value") from None
    if len(parts) == 1 and parts[0] != "version":
        raise ConfigError(f"override {override!r}: wants section.key=value{_hint(parts[0])}")
    _set(values, parts, value, source=f"override {override!r}")


def _set(values: dict[str, Any], path: list[str], value: Any, *, source: str) -> None:
    """Put a value at a path of nested dictionaries, which are copied on the way."""
    for part in path[:-1]:
        inner = values.get(part)
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"{source}: {part!r} is a value, not a section")
        values[part] = values = dict(inner or {})
    values[path[-1]] = value


def _key_paths() -> Iterator[str]:
    for section, field in Config.model_fields.items():
        if isinstance(kind := field.annotation, type) and issubclass(kind, Section):
            yield from (f"{section}.{key}" for key in kind.model_fields)


def _is_key(path: str) -> bool:
    """Whether a dotted path names a key of a run; the models know what goes below two of them."""
    section, _, key = path.partition(".")
    if section == "model" and key.startswith(("overrides.", "attention_options.")):
        return key.count(".") == 1 and not key.endswith(".")
    return section != "tune" and path in _key_paths()


def _hint(path: str) -> str:
    """The known keys that look like `path`, or that are called so in another section."""
    known = [key for key in _key_paths() if key != path]
    same_name = [key for key in known if key.endswith(f".{path.rpartition('.')[2]}")]
    sections = [] if "." in path else near_matches(path, Config.model_fields)
    near = sections or same_name or near_matches(path, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _explain(error: ValidationError) -> Iterator[str]:
    """One phrase for each fault that pydantic found."""
    for fault in error.errors(include_url=False):
        section, *rest = (str(part) for part in fault["loc"]) if fault["loc"] else ("",)
        searched = section == "search"
        path = ".".join([section, *(p for p in rest if not (searched and p in CANDIDATES))])
        if fault["type"] == "extra_forbidden":
            known = Config.model_fields.get(section)
            kind = Range if searched else known.annotation if known else Config
            fields = getattr(kind, "model_fields", Config.model_fields)
            hint = "" if searched else _hint(path)
            yield f"unknown key {path!r}{hint} Accepted: {', '.join(fields)}"
        elif fault["type"] == "value_error":
            told = fault["msg"].removeprefix("Value error, ")
            yield f"{path}: {told}" if searched else told
        else:
            reason = fault["msg"][0].lower() + fault["msg"][1:]
            yield f"{path}={fault['input']!r}: {reason}"
