"""What happens with new versions, as users write it: a document to RefreshPolicy, and back."""

from typing import Any, cast

from rankhouse.serving.control.model_state import RefreshPolicy
from rankhouse.serving.control.rollout_spec import parse_rollout, parse_webhooks, rollout_document, webhook_documents
from rankhouse.serving.control.spec_section import Section, shown
from rankhouse.serving.errors import RolloutSpecError

_ADMIT = ("direct", "rollout", "manual")
_MOST_BYTES = float(1 << 50)


def parse_policy(document: object) -> RefreshPolicy:
    """Reads a policy of its document: what YAML or JSON gives.

    Raises:
        RolloutSpecError: A key or value does not work.
    """
    section = Section(document, "", ("admit", "rollout", "keep_loaded_bytes", "held", "webhooks", "drift"))
    admit = section.choice("admit", "direct", _ADMIT)
    template = section.raw("rollout")
    if (admit == "rollout") != (template is not None):
        raise RolloutSpecError("admit: rollout needs the key rollout with its steps, and no other policy has it")
    drift = section.raw("drift")
    if drift is not None and not isinstance(drift, dict):
        raise RolloutSpecError(f"drift is {shown(drift)}; expected keys and values")
    return RefreshPolicy(
        admit=cast(Any, admit),
        rollout=None if template is None else parse_rollout(template, is_template=True),
        keep_loaded_bytes=int(section.number("keep_loaded_bytes", 0, low=0, high=_MOST_BYTES)),
        is_held=section.flag("held", default=False),
        webhooks=parse_webhooks(section),
        drift=drift,
    )


def policy_document(policy: RefreshPolicy) -> dict[str, Any]:
    """The document that `parse_policy` makes the same policy of."""
    document: dict[str, Any] = {
        "admit": policy.admit,
        "keep_loaded_bytes": policy.keep_loaded_bytes,
        "held": policy.is_held,
    }
    if policy.rollout is not None:
        document["rollout"] = rollout_document(policy.rollout, is_template=True)
    if policy.webhooks:
        document["webhooks"] = webhook_documents(policy.webhooks)
    if policy.drift is not None:
        document["drift"] = policy.drift
    return document
