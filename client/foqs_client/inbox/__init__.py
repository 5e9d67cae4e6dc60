"""The inbox: the effects of a handler, and the fact that they are done, in one transaction of the user.

docs/inbox.md shows how it is used; docs/design/outbox.md says how it works.
"""

from foqs_client.inbox.committing import once, once_async
from foqs_client.inbox.pruning import Pruned, prune, prune_async

__all__ = ["Pruned", "once", "once_async", "prune", "prune_async"]
