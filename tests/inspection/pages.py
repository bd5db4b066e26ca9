"""Reading the report's page as a browser would, with the standard library's parser."""

import html.parser

_VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """What is on a page.

    Attributes:
        tags: (tag, {attribute: value}) of every element.
        text: the text outside of <script> and <style>.
        scripts: the text of every <script>.
        headings: the text of every <h2>.
        rows: the texts of the cells of every table row.
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.headings, self.rows, self.text, self._open = [], [], [], [], "", []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in _VOID or tag == "html":
            return
        self._open.append(tag)
        if tag == "script":
            self.scripts.append("")
        elif tag == "h2":
            self.headings.append("")
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag != "html":
            assert self._open.pop() == tag

    def handle_data(self, data):
        if "script" in self._open:
            self.scripts[-1] += data
        elif "style" not in self._open:
            self.text += data
            if "h2" in self._open:
                self.headings[-1] += data
            if "td" in self._open or "th" in self._open:
                self.rows[-1][-1] += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)

    def links(self):
        """The addresses of everything that is not in the page itself."""
        found = [
            value
            for _, attributes in self.tags
            for key, value in attributes.items()
            if key.split(":")[-1] in ("src", "href")
        ]
        return [address for address in found if not address.startswith(("data:", "#"))]

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]
