"""What a model's inputs stand for: the fit of the dataset that it learns from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.training.data.feature_spec import AnyFeature


@dataclass(frozen=True)
class Fit:
    """How raw values become numbers and ids.

    Attributes:
        features: All features, with the statistics of continuous ones.
        vocabularies: The SHA-256 of each layer of the vocabularies, base first.
    """

    features: tuple[Feature, ...]
    vocabularies: tuple[str, ...]

    def difference(self, before: "Fit") -> str:
        """Says where inputs do not stand for what they did; empty where they do, with or without further layers."""
        if found := first_difference(self.features, before.features):
            return found
        for number, checksum in enumerate(before.vocabularies):
            if number >= len(self.vocabularies):
                return f"layer {number} of the vocabularies is missing, was {checksum[:8]}"
            if self.vocabularies[number] != checksum:
                return f"layer {number} of the vocabularies is {self.vocabularies[number][:8]}, was {checksum[:8]}"
        return ""

    def document(self) -> dict[str, Any]:
        """The fit as JSON values."""
        return {"features": [asdict(each) for each in self.features], "vocabularies": list(self.vocabularies)}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "Fit":
        """Reads what `document` gave.

        Raises:
            KeyError, TypeError: It is not that.
        """
        return cls(tuple(map(Feature.parse, document["features"])), tuple(document["vocabularies"]))


def first_difference(features: Sequence[AnyFeature | Feature], before: Sequence[AnyFeature | Feature]) -> str:
    """Says where features differ first from what they were; empty where they do not."""
    names, old_names = ([feature.name for feature in each] for each in (features, before))
    if names != old_names:
        return f"features are {', '.join(names)}, were {', '.join(old_names)}"
    for feature, old in zip(features, before, strict=True):
        was = _settings(old)
        for key, value in _settings(feature).items():
            if key not in was or was[key] != value:
                return f"feature {feature.name!r} has {key} {value!r}, had {was.get(key)!r}"
    return ""


def _settings(feature: AnyFeature | Feature) -> dict[str, Any]:
    settings = asdict(feature)
    steps = settings.pop("steps", None) or {}
    return {**settings, **steps}
