"""`python -m pyspark_foqs` checks that Spark will find the sink."""

import sys

from foqs_client.spark.environment import main

sys.exit(main())
