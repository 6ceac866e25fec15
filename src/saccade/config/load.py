"""The configuration of one run, built from YAML and overrides.

Every key is checked; the error for an unknown key suggests similar ones. The module does not import
torch, so reports and `--help` start fast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from saccade.config.sections import (
    CANDIDATES,
    AugmentConfig,
    DataConfig,
    InitConfig,
    ModelConfig,
    OptimConfig,
    Range,
    RunConfig,
    SearchSpace,
    Section,
    TrainConfig,
    TuneConfig,
)
from saccade.errors import (
    MAX_VALUE,
    ConfigError,
    UnknownNameError,
    listed,
    near_matches,
    shorten,
)
from saccade.io import decode_text, parse_yaml, read_yaml
from saccade.synonyms import synonyms
from saccade.upgrades import (
    CONFIG_VERSION,
    former_attention_options,
    former_overrides,
    given_twice,
    renamed,
)

MAX_FAULTS = 5  # faults listed in one message


class Config(Section):
    """The full configuration of a run; only `saccade tune` uses `search` and `tune`."""

    version: Annotated[int, Field(strict=True, ge=1)] = CONFIG_VERSION
    model: ModelConfig = ModelConfig()
    init: InitConfig = InitConfig()
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
                shown = shorten(repr(key), MAX_VALUE)
                raise ValueError(f"search: unknown key {shown}{_hint(key)}")
        return self

    @model_validator(mode="after")
    def _sharding_is_possible(self) -> Config:
        if self.train.strategy == "fsdp":
            if self.optim.name == "muon":
                raise ValueError("optim.name='muon' needs whole matrices: use train.strategy=ddp")
            if self.train.precision == "fp16":
                raise ValueError(
                    "train.precision must be 'fp32' or 'bf16' with strategy='fsdp', got 'fp16'"
                )
        return self

    @model_validator(mode="after")
    def _validation_where_needed(self) -> Config:
        if self.data.is_without_validation and (key := self.watches_validation()):
            raise ValueError(
                f"{key} needs validation images: data.val_fraction must be above 0, got 0"
            )
        return self

    def watches_validation(self) -> str | None:
        """The key that needs validation images; None if there is none."""
        if self.optim.schedule == "plateau":
            return "optim.schedule='plateau'"
        if self.train.early_stopping_patience is not None:
            return "train.early_stopping_patience"
        return None


def make_config(values: Mapping[str, Any], *, source: str = "config") -> Config:
    """Check plain values and build the configuration.

    Args:
        values: Sections, as read from YAML.
        source: Name of their origin, for the start of error messages.

    Raises:
        ConfigError: A key or value is invalid. The message names key, value and what is accepted.
    """
    version = values.get("version", CONFIG_VERSION)
    if isinstance(version, int) and version > CONFIG_VERSION:
        raise ConfigError(
            f"{source}: version={version} was written by a newer saccade; this one reads up to "
            f"version {CONFIG_VERSION}. Upgrade saccade to use it"
        )
    overrides = values["model"].get("overrides") if isinstance(values.get("model"), dict) else None
    if isinstance(overrides, Mapping) and (fault := given_twice(overrides)):
        raise ConfigError(f"{source}: model.overrides: {fault}")
    try:
        return Config.model_validate(_upgraded(values))
    except ValidationError as error:
        raise ConfigError(f"{source}: {_listed_faults(error)}") from None


def _upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values of an older version; invalid parts are left for validation to report."""
    version, model = values.get("version"), values.get("model", {})
    if isinstance(model, Mapping) and isinstance(given := model.get("overrides"), Mapping):
        model = {**model, "overrides": renamed(given)}
        values = {**values, "model": model}
    if type(version) is not int or not 1 <= version < CONFIG_VERSION:
        return dict(values)
    model = dict(model) if isinstance(model, Mapping) else model
    if isinstance(model, dict) and isinstance(given := model.get("overrides", {}), Mapping):
        model["overrides"] = former_overrides(str(model.get("name")), version) | dict(given)
    if isinstance(model, dict) and isinstance(given := model.get("attention_options"), Mapping):
        model["attention_options"] = former_attention_options(given, version)
    return {**values, "model": model, "version": CONFIG_VERSION}


def load_config(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a recipe by name, or a YAML file by path, and apply `section.key=value` overrides."""
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"}:
        if not path.exists():
            raise ConfigError(f"no such config file: {str(path)!r}")
        values = read_yaml(path)
    elif path.exists() and str(path) not in list_recipes():
        is_folder = path.is_dir()
        kind = "the folder" if is_folder else "the file"
        wanted = "a YAML file" if is_folder else "a file that ends in .yaml or .yml"
        raise ConfigError(f"RECIPE must be a recipe's name or {wanted}, got {kind} {str(path)!r}")
    else:
        values = parse_yaml(recipe_text(str(name_or_path)), str(name_or_path))
    values = _sections(values, source=str(name_or_path))
    for override in overrides:
        _apply(values, override)
    return make_config(values, source=str(name_or_path))


def parse_config(content: bytes, path: Path) -> Config:
    """Parse the content of a YAML file, as `load_config` does."""
    values = parse_yaml(decode_text(content, path), str(path))
    return make_config(_sections(values, source=str(path)), source=str(path))


def with_overrides(config: Config, overrides: Iterable[str]) -> Config:
    """A copy of the configuration with `section.key=value` overrides applied."""
    values = config.model_dump(mode="json")
    for override in overrides:
        _apply(values, override)
    return make_config(values)


def with_values(config: Config, changes: Mapping[str, Any]) -> Config:
    """A copy of the configuration with the values of some dotted keys replaced."""
    values = config.model_dump(mode="json")
    for key, value in changes.items():
        _set(values, key.split("."), value, source=key)
    return make_config(values)


def differences(before: Config, after: Config, *, ignored: Collection[str] = ()) -> list[str]:
    """The keys in which two configurations differ, each with the old and the new value."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    found = []
    for key in _key_paths():
        section, _, name = key.partition(".")
        was, now = old[section][name], new[section][name]
        if was != now and section != "tune" and key not in ignored:
            found.append(f"{key} ({was!r} -> {now!r})")
    return found


def dump_config(config: Config) -> str:
    """The configuration as YAML with all defaults; no `tune` if `search` is empty."""
    unused = set() if config.search else {"search", "tune"}
    return yaml.safe_dump(config.model_dump(mode="json", exclude=unused), sort_keys=False)


def list_recipes() -> list[str]:
    """Sorted names of the recipes shipped with saccade."""
    folder = files("saccade") / "recipes"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[-5:] == ".yaml")


def recipe_text(name: str) -> str:
    """The YAML text of a recipe, including its header comment."""
    if name not in (known := list_recipes()):
        raise UnknownNameError("recipe, file or folder", name, known)
    return (files("saccade") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")


def _sections(values: Any, *, source: str) -> dict[str, Any]:
    if values is None:
        raise ConfigError(f"{source} is empty: it must have sections such as data and train")
    if not isinstance(values, dict):
        raise ConfigError(f"{source} must be a mapping of sections, got {type(values).__name__}")
    return values


def _apply(values: dict[str, Any], override: str) -> None:
    """Set the dotted key of one `section.key=value` in nested dictionaries."""
    key, equals, text = override.partition("=")
    source = f"override {shorten(repr(override), MAX_VALUE)}"
    parts = key.strip().split(".", maxsplit=1 if key.strip().startswith("search.") else -1)
    if not equals or not all(parts):
        raise ConfigError(f"{source} must have the form section.key=value")
    try:
        value = parse_yaml(text, source)
    except ConfigError:
        shown = shorten(repr(text), MAX_VALUE)
        raise ConfigError(f"{source}: {shown} is not a YAML value") from None
    if len(parts) == 1 and parts[0] != "version":
        raise ConfigError(f"{source} must have the form section.key=value{_hint(parts[0])}")
    _set(values, parts, value, source=source)


def _set(values: dict[str, Any], path: list[str], value: Any, *, source: str) -> None:
    """Set the value at a path of nested dictionaries; the inner dictionaries are copied."""
    for part in path[:-1]:
        inner = values.get(part)
        if inner is not None and not isinstance(inner, dict):
            shown = shorten(repr(part), MAX_VALUE)
            raise ConfigError(f"{source}: {shown} is a value, not a section")
        values[part] = values = dict(inner or {})
    values[path[-1]] = value


def _key_paths() -> Iterator[str]:
    for section, field in Config.model_fields.items():
        if isinstance(kind := field.annotation, type) and issubclass(kind, Section):
            yield from (f"{section}.{key}" for key in kind.model_fields)


def _is_key(path: str) -> bool:
    """True if a dotted path is a key of a run.

    Any single name is accepted below `model.overrides`, `model.attention_options` and
    `data.options`, which the model and the data set check later.
    """
    section, _, key = path.partition(".")
    is_open = section == "data" and key.startswith("options.")
    if is_open or (section == "model" and key.startswith(("overrides.", "attention_options."))):
        return key.count(".") == 1 and not key.endswith(".")
    return section != "tune" and path in _key_paths()


def keys_called(name: str) -> list[str]:
    """Keys whose last part is `name`, or that other libraries call by this name."""
    known, word = list(_key_paths()), name.rpartition(".")[2].replace("-", "_")
    same_name = [key for key in known if key.endswith(f".{word}")]
    meant = [key for key in synonyms(name) if "." in key and _is_key(key)]
    return [key for key in same_name or meant if key != name][:3]


def similar_keys(path: str) -> list[str]:
    """Keys that `path` may stand for: known synonyms first, then similar spellings."""
    sections = [] if "." in path else near_matches(path, Config.model_fields)
    return keys_called(path) or sections or near_matches(path, set(_key_paths()) - {path})


def _hint(path: str) -> str:
    near = similar_keys(path)
    return f": did you mean {' or '.join(map(repr, near))}?" if near else "."


def _listed_faults(error: ValidationError) -> str:
    """The first faults that pydantic found, and the number of the others."""
    faults = error.errors(include_url=False)
    told = list(map(_explain_fault, faults[:MAX_FAULTS]))
    if len(faults) > MAX_FAULTS:
        told.append(f"and {len(faults) - MAX_FAULTS} more faults")
    return "; ".join([*(fault.removesuffix(".") for fault in told[:-1]), told[-1]])


def _explain_fault(fault: ErrorDetails) -> str:
    section, *rest = (str(part) for part in fault["loc"]) if fault["loc"] else ("",)
    searched = section == "search"
    path = ".".join([section, *(p for p in rest if not (searched and p in CANDIDATES))])
    if fault["type"] == "extra_forbidden":
        known = Config.model_fields.get(section)
        kind = Range if searched else known.annotation if known else Config
        fields = getattr(kind, "model_fields", Config.model_fields)
        hint = "." if searched else _hint(path)
        key = shorten(repr(path), MAX_VALUE)
        return f"unknown key {key}{hint} Accepted: {listed(fields)}."
    if fault["type"] == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{path}: {message}" if searched else message
    reason = fault["msg"][0].lower() + fault["msg"][1:]
    return f"{shorten(path, MAX_VALUE)}={shorten(repr(fault['input']), MAX_VALUE)}: {reason}"
