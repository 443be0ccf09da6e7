"""The page: timelines in a browser, as one file that needs nothing else, or live on this machine.

Python computes everything that is known of a timeline; the page shows it.
"""

from weft.web.notebook import explore
from weft.web.page import page, write_page

__all__ = ["explore", "page", "write_page"]
