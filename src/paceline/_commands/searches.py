"""Gives commands what reads searches: the views below know runs only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation
    from paceline._view.listing import Listing
    from paceline.tune.results.search_reader import SearchReader


def open_search(location: RunLocation) -> SearchReader:
    # Imported when there is a search: it takes longer than listing a hundred runs.
    from paceline.tune.results.search_reader import SearchReader

    return SearchReader(location)


def read_listing(root: str) -> Listing:
    """Return a listing of what is below a path or address now."""
    from paceline._view.listing import Listing

    listing = Listing(root, open_search)
    listing.refresh()
    return listing
