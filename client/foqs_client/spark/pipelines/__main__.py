"""Runs a pipeline: `python -m foqs_client.spark.pipelines NAME ...`, or spark-submit of this file."""

import sys

from foqs_client.spark.pipelines.command import main

sys.exit(main())
