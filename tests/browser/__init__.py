"""A real browser for tests of web pages: Chromium without a window, pinned, fetched by the first test that needs it.

`npm` fetches and checks a package, `chromium` unpacks the browser, `pages` opens pages in it and judges what they said,
`access` looks for what keeps people from using a page, `fixtures` gives tests the fixture `browser`.
What it shows, and how a test of a page is written: docs/development.md, "Pages in a browser".
"""
