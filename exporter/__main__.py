"""python -m exporter: see exporter.cli.parser."""

import sys

from exporter.cli.parser import main

sys.exit(main())
