"""What a host shows at a scrape of what the hosts of its tier tell each other: the readings of `metric_table.TIER`.

Always true: a scrape asks nobody. Knows nothing of the format.
"""

from __future__ import annotations

from foqs.metrics import Readings
from foqs.tier.telling import Telling


def tier_readings(telling: Telling) -> Readings:
    """Every reading, as things are now."""
    exchange = telling.exchange
    return {
        "foqs_exchanges": [((), float(exchange.asked))],
        "foqs_exchange_failures": [((), float(exchange.failures))],
        "foqs_peer_summaries_age_seconds": [((), exchange.oldest_s)],
        "foqs_peer_topics": [((), float(len(telling.summaries)))],
    }
