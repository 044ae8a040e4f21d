"""Order statistics of whole tables: `python -m service.batch` (docs/scale.md).

options   what is asked                         ordered   floats as integers in their order
inputs    files, pieces of them, numbers        ranks     which entries a quantile mixes, and how
journal   plan and parts in the output folder   models    networks for the lengths that occur
work      what a process does with one piece    solve     many short vectors through the networks
grouping  rows of one key brought together      search    one vector of any length, by counting
engines   where work is done: processes or Ray  run       the three shapes, from plan to parts
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

if find_spec("pyarrow") is None:
    message = "tables need pyarrow: pip install 'onnx-median[service,tables]'"
    if sys.argv[0] == "-m":
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
    raise ModuleNotFoundError(message, name="pyarrow")
