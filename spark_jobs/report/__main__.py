"""Entry point of `python -m spark_jobs.report`: calls `main`."""

import sys

from spark_jobs.report.main import main

if __name__ == "__main__":
    sys.exit(main())
