"""What is around a page: the contents beside it, the page before and the page after."""

from typing import Any

from page_list import SitePages
from sphinx.application import Sphinx


def add(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    pages = app.env.project
    assert isinstance(pages, SitePages)
    titles = {name: title.astext() for name, title in app.env.titles.items()}
    for section in pages.sections:
        titles |= {name: title for name, title in section.titles.items() if name in titles}
    context["sections"] = [
        {
            "title": section.title,
            "has_page": pagename in section.pages,
            "pages": [
                {"name": name, "title": titles[name], "is_this": name == pagename}
                for name in section.pages
                if name in titles
            ],
        }
        for section in pages.sections
    ]
    order = pages.order()
    at = order.index(pagename) if pagename in order else None
    for side, step in (("before", -1), ("after", 1)):
        other = at + step if at is not None else -1
        context[side] = {"name": order[other], "title": titles[order[other]]} if 0 <= other < len(order) else None
    context["place"] = str(pages.places.get(pagename, ""))
