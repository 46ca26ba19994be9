"""The ranks that train together; everything of this surface shares them."""

from functools import cache

from rankhouse.training.ranks import Ranks


@cache
def world() -> Ranks:
    """Returns the ranks that the launcher started, or a group of one where there is no launcher."""
    return Ranks.init()
