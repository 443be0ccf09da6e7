"""The page: timelines in a browser, as one file that needs nothing else, or live on this machine.

Python computes everything that is known of a timeline; the page shows it.
"""

from weft.web.page import page, write_page

__all__ = ["page", "write_page"]
