"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine generates slowly; that says nothing of the product.
settings.register_profile("foqs", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("foqs")
