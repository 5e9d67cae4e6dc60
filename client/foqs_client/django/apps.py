"""The Django application: its models, migrations and checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class FoqsConfig(AppConfig):
    """The application `foqs_client.django`; its tables begin with `foqs_`."""

    name = "foqs_client.django"
    label = "foqs"
    verbose_name = "FOQS"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the check that reads tables."""
        from foqs_client.django.table_checks import check_tables

        checks.register(check_tables, checks.Tags.database)
