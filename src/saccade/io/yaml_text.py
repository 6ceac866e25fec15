"""Parse YAML; its size with all aliases expanded is checked before Python objects are built."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import yaml

from saccade.errors import ConfigError, shorten
from saccade.io.parsing import Limits

_MAX_DIGITS = 400  # the longest float has 309 before its point


def parse(text: str, source: str, limits: Limits) -> Any:
    """Parse a YAML text, as `saccade.io.parse_yaml` does."""
    try:
        fault = _yaml_excess(text, limits)
        if fault is None:
            return yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        message = shorten(" ".join(str(error).split()), 300)
        raise ConfigError(f"{source}: not valid YAML: {message}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        message = shorten(" ".join(str(error).split()), 200)  # for example, an impossible date
        raise ConfigError(f"{source}: not valid YAML: {type(error).__name__}: {message}") from None
    raise ConfigError(f"{source}: {fault}")


@dataclass
class _Node:
    """Size of a YAML value with its aliases expanded.

    Attributes:
        anchor: Anchor name, if any.
        items: Number of values, including itself.
        characters: Characters of all values.
        depth: Nesting of lists and mappings.
    """

    anchor: str | None = None
    items: int = 1
    characters: int = 0
    depth: int = 0

    def add(self, inner: _Node) -> None:
        """Add the size of a value that this one contains."""
        self.items += inner.items
        self.characters += inner.characters
        self.depth = max(self.depth, inner.depth + 1)


def _yaml_excess(text: str, limits: Limits) -> str | None:
    """Describe the limit that a YAML text exceeds, without building its values; None if none."""
    parents: list[_Node] = []
    anchors: dict[str, _Node | None] = {}  # None until the value is complete
    items = characters = 0
    for event in yaml.parse(text, Loader=_StrictLoader):
        node: _Node | None = None
        if isinstance(event, yaml.CollectionStartEvent):
            parents.append(_Node(event.anchor, depth=1))
            if event.anchor is not None:
                anchors[event.anchor] = None
            items += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            node = parents.pop()
        elif isinstance(event, yaml.ScalarEvent):
            node = _Node(event.anchor, characters=len(event.value))
        elif isinstance(event, yaml.AliasEvent):
            node = anchors.get(str(event.anchor), _Node())
            if node is None:
                return f"alias *{shorten(str(event.anchor), 50)} refers to a value that contains it"
        if node is not None:
            if not isinstance(event, yaml.CollectionEndEvent):  # its parts are counted already
                items, characters = items + node.items, characters + node.characters
            if not isinstance(event, yaml.AliasEvent) and node.anchor is not None:
                anchors[node.anchor] = node
            if parents:
                parents[-1].add(node)
        if len(parents) + (node.depth if node is not None else 0) > limits.depth:
            return f"nested too deeply: more than {limits.depth} levels"
        if items > limits.items:
            return f"too large: more than {limits.items:,} values"
        if characters > limits.size:
            return f"too large: more than {limits.size:,} characters"
    return None


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is faster


class _StrictLoader(_SafeLoader):  # type: ignore[misc]
    """A safe YAML loader that rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(problem="a key is not a plain value")
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {shorten(repr(key), 80)} is written twice")
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _short_number(loader: Any, node: yaml.ScalarNode) -> Any:
    """Build a number; the time that a long one takes grows with the square of its length."""
    if len(node.value) > _MAX_DIGITS:
        told = f"a number must have at most {_MAX_DIGITS} digits, got {len(node.value)}"
        raise yaml.MarkedYAMLError(problem=told)
    kind = node.tag.rpartition(":")[2]
    return getattr(loader, f"construct_yaml_{kind}")(node)


for _kind in ("int", "float"):
    _StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _short_number)


# YAML 1.1 reads 1e-4 as a string, because it has no dot. Read it as a number.
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+"), list("-+0123456789")
)
