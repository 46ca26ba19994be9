"""Within the values of which feature evaluations report the AUC. Knows no TensorFlow, so that it is checked early."""

import difflib

from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.errors import ConfigError


def feature_number(spec: FeatureSpec, auc_by: str) -> int | None:
    """Returns where among the categorical features that stands which `training.auc_by` names; None for an empty name.

    Raises:
        ConfigError: There is no such feature, its samples may have several values, or these have no ids.
    """
    if not auc_by:
        return None
    names = [feature.name for feature in spec.categorical if not feature.is_list and not feature.is_learnt]
    if auc_by not in names:
        nearest = difflib.get_close_matches(auc_by, names, n=1, cutoff=0.5)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(
            f"training.auc_by is {auc_by!r}: expected a categorical feature with one value in each sample and a fitted "
            f"vocabulary, of which there are {', '.join(names) or 'none'}, or nothing{hint}"
        )
    return [feature.name for feature in spec.categorical].index(auc_by)
