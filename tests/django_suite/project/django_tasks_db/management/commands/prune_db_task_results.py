"""Nothing: the tests of the package's pruning are not run."""

import logging

logger = logging.getLogger("django_tasks_db")
