"""The command by which the suite starts a worker: the relay and a consumer, until nothing is ready."""

from django.core.management.base import BaseCommand

from django_tasks_db import queue_of_suite
from foqs_client.django.command_backend import named_backend


class Command(BaseCommand):
    """Runs what is ready. It has those of the suite's options that `foqs_worker` has too."""

    def add_arguments(self, parser):
        """Declare the options. The last ones are of a worker that asks a table, and have no effect."""
        parser.add_argument("--backend", dest="backend_name", default="default")
        parser.add_argument("--queue-name", default="default")
        for name in ("batch", "interval", "startup_delay", "worker_id"):
            parser.add_argument(f"--{name}", dest=name)

    def handle(self, *, backend_name, queue_name, **_options):
        """Work."""
        backend = named_backend(backend_name)
        queue_of_suite.work(backend.topics([] if queue_name == "*" else queue_name.split(",")))
