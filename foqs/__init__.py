"""A distributed, multi-tenant, durable priority queue on sharded MySQL."""

import os

if os.environ.get("FOQS_PURE", "0") not in ("", "0"):
    from foqs.runtime.plain_python import ignore_compiled

    ignore_compiled()
