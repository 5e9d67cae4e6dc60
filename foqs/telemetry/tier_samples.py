"""What a host shows at a scrape of what the hosts of its tier tell each other: the readings of `metric_table.TIER`.

Always true: a scrape asks nobody. Knows nothing of the format.
"""

from __future__ import annotations

from foqs.cluster.gossip.gossip import Gossip
from foqs.telemetry.metrics import Samples


def tier_samples(telling: Gossip) -> Samples:
    """Every reading, as things are now."""
    exchange = telling.exchange
    return {
        "foqs_exchanges": [((), float(exchange.reply_count))],
        "foqs_exchange_failures": [((), float(exchange.failure_count))],
        "foqs_peer_summaries_age_seconds": [((), exchange.oldest_view_age_s)],
        "foqs_peer_topics": [((), float(len(telling.view)))],
    }
