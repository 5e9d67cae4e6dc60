"""`python -m pyspark_foqs`: will Spark find the sink?"""

import sys

from foqs_client.spark.environment import main

sys.exit(main())
