"""The report of `spark_jobs.report.main` as a file that `spark-submit` accepts.

The package must be installed, or the directory above `spark_jobs` be on PYTHONPATH.
"""

import sys

from spark_jobs.report.main import main

if __name__ == "__main__":
    sys.exit(main())
