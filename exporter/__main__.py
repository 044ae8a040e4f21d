"""python -m exporter: see exporter.cli.parser."""

import sys

try:
    from exporter.cli.parser import main
except KeyboardInterrupt:  # loading takes a second or more
    print("interrupted: nothing was written", file=sys.stderr)
    sys.exit(130)

sys.exit(main())
