"""Who wants to be told of what: read from the rollouts and the refresh policy, so there is no list that could be wrong.

Events of a rollout go to the rollout's webhooks; all others to the policy's. What drift monitors find goes to the
command of the gateway's settings as well.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rankhouse.serving.control.model_state import Event
from rankhouse.serving.control.rollout_spec import SECRET_PREFIX, Webhook
from rankhouse.serving.control.state_store import MAX_FINISHED, StateStore
from rankhouse.serving.control.webhook_urls import shown_url

DRIFTED = "drifted"

_COMMAND = "the retraining command"
_PAGE = 100  # events


@dataclass(frozen=True)
class Target:
    """Whom events go to.

    Attributes:
        url: The URL that they are posted to; empty for the command of the settings.
        secret_env: The environment's variable that holds the key of the signature, if it has one of its own.
    """

    url: str
    secret_env: str = ""

    @property
    def is_command(self) -> bool:
        """Whether it is the command of the gateway's settings."""
        return not self.url

    @property
    def name(self) -> str:
        """What its progress is kept under. It holds the URL, which may be a secret: messages say `shown`."""
        return self._named(self.url)

    @property
    def shown(self) -> str:
        """What messages and readers call it."""
        return self._named(shown_url(self.url) if self.url else "")

    def secret(self) -> bytes | None:
        """The key that the subscription names; None if it names none, or the variable is not there."""
        # Operators choose which secret signs, but must not make any variable a key for strangers to guess.
        value = os.environ.get(self.secret_env, "") if self.secret_env.startswith(SECRET_PREFIX) else ""
        return value.encode() or None

    def _named(self, url: str) -> str:
        return f"{url} ({self.secret_env})" if self.secret_env else url or _COMMAND


_COMMAND_TARGET = Target("")


@dataclass(frozen=True)
class Subscriptions:
    """Who wants what now.

    Attributes:
        rollouts: The webhooks of each rollout, by its id.
        policy: The webhooks of events that are no rollout's.
    """

    rollouts: Mapping[str, tuple[Webhook, ...]]
    policy: tuple[Webhook, ...]

    @classmethod
    def read(cls, store: StateStore, model: str) -> "Subscriptions":
        """Reads them; blocks.

        Raises:
            StateStoreError: The store is away.
        """
        state = store.read(model).state
        # All of them: a receiver may be a day behind.
        rollouts = (*store.finished(model, limit=MAX_FINISHED), *state.rollouts)
        return cls({rollout.id: rollout.spec.webhooks for rollout in rollouts}, state.policy.webhooks)

    def targets(self, *, has_command: bool) -> set[Target]:
        """Everybody who wants anything."""
        hooks = (*(hook for hooks in self.rollouts.values() for hook in hooks), *self.policy)
        return {_target(hook) for hook in hooks} | ({_COMMAND_TARGET} if has_command else set())

    def wants(self, target: Target, event: Event) -> bool:
        """Says whether an event goes to a target."""
        if target.is_command:
            return event.kind == DRIFTED
        hooks = self.policy if event.rollout is None else self.rollouts.get(event.rollout, ())
        return any(_target(hook) == target and (not hook.events or event.kind in hook.events) for hook in hooks)


def first_number(store: StateStore, model: str, target: Target) -> int:
    """The number of the event that subscribed a target that has received nothing yet. Blocks.

    It is the creation of the first rollout that names it, or the policy's last change; for the command, which no event
    subscribes, the next event. After a crash it is found again, so nothing is lost before the first delivery.
    """
    subscriptions = Subscriptions.read(store, model)
    rollouts = {name for name, hooks in subscriptions.rollouts.items() if _names(hooks, target)}
    is_in_policy = _names(subscriptions.policy, target)
    first = newest = None
    before: int | None = None
    while page := store.history(model, before=before, limit=_PAGE):
        newest = page[0].number if newest is None else newest
        for event in page:
            is_policy = is_in_policy and event.kind == "policy_changed"
            if is_policy or event.rollout in rollouts:
                first = event.number
                is_in_policy = is_in_policy and not is_policy
        before = page[-1].number
    return first if first is not None else (newest or 0) + 1


def _names(hooks: Iterable[Webhook], target: Target) -> bool:
    return any(_target(hook) == target for hook in hooks)


def _target(hook: Webhook) -> Target:
    return Target(hook.url, hook.secret_env)
