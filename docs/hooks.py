"""Links of the pages to files outside of docs/, for mkdocs: the copies that docs/reference.py makes, or plain text."""

from __future__ import annotations

import os
import re
from typing import Any

COPIES = {
    "models/RUNTIMES.md": "reference/RUNTIMES.md",
    "CHANGELOG.md": "reference/CHANGELOG.md",
    "README.md": "index.md",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target.startswith("/"):
            return f"[{words}]({os.path.relpath(target[1:], os.path.dirname(page.file.src_path) or '.')})"
        file = os.path.normpath(os.path.join("docs", os.path.dirname(page.file.src_path), target))
        if file.startswith("docs") or "://" in target or target.startswith("#"):
            return match[0]
        return f"[{words}]({COPIES[file]})" if file in COPIES else words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, markdown)
