"""Find barriers that keep a person from using a page: `barriers` lists them, `assert_usable` fails on any.

axe-core, the usual checker, judges names, labels, contrast and all other rules of WCAG 2.2 A and AA that a program can
judge (its rules: `npm view axe-core homepage`). Two rules that axe-core leaves to people are checked here: nothing is
wider than the window, and a person who uses the Tab key sees the focus and reaches everything.

The page is judged as it is: in its width, its scheme, with the parts that are unfolded at the moment.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from flowshare.dev import DevFailure
from tests.browser.npm import Package, unpacked
from tests.kafka.fixtures import refuse

if TYPE_CHECKING:
    from playwright.async_api import Page

AXE = Package(
    "axe-core",
    "4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
MOST_STOPS = 500
"""Presses of the Tab key; of a longer page the first stops are looked at."""

_RUN_AXE = """async tags => {
  const found = await axe.run(document, {
    runOnly: {type: 'tag', values: tags}, resultTypes: ['violations'], preload: false, iframes: false,
  });
  return found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id}: ${node.html.slice(0, 200)}: ${[...node.any, ...node.all, ...node.none].map(c => c.message).join('; ')}`
  ));
}"""
_WIDER = """() => {
  const room = document.documentElement.clientWidth, needed = document.documentElement.scrollWidth;
  if (needed <= room) return [];
  const clipped = e => { for (e = e.parentElement; e && e !== document.body; e = e.parentElement)
    if (getComputedStyle(e).overflowX !== 'visible') return true; return false; };
  const wide = [...document.body.querySelectorAll('*')].filter(
    e => e.getBoundingClientRect().right + scrollX > room + 1 && !clipped(e));
  return [`overflow: the page is ${needed} pixels wide in a window of ${room}: ` +
    wide.slice(-3).map(e => e.outerHTML.slice(0, 100)).join(' … ')];
}"""
# Everything that can have the focus, and how it looks without: itself, what it is in, and what follows it (a box that
# is drawn beside a hidden checkbox).
_BEFORE_TABS = """() => {
  const looks = e => [e, e.parentElement, e.nextElementSibling].map(one => {
    if (!one) return '';
    const s = getComputedStyle(one);
    return [s.outlineStyle === 'none' ? '' : s.outlineStyle + s.outlineWidth + s.outlineColor, s.boxShadow,
      s.border, s.backgroundColor, s.color, s.textDecorationLine, s.transform, s.opacity].join('|');
  }).join('\\n');
  const root = [...document.querySelectorAll(':modal')].pop() ?? document.body;
  const all = [...root.querySelectorAll('a[href],button,input,select,textarea,summary,[tabindex]')].filter(
    e => e.tabIndex >= 0 && !e.disabled && e.type !== 'hidden' && e.checkVisibility({visibilityProperty: true})
      && !e.closest('[inert]'));
  const start = Object.assign(document.createElement('span'), {tabIndex: -1});
  root.prepend(start);
  start.focus();
  start.remove();
  const group = e => e.type === 'radio' && e.name ? 'radio ' + e.name : e;
  const left = new Map(all.map(e => [group(e), e])), plain = new Map(all.map(e => [e, looks(e)]));
  window.__tabs = {looks, group, left, plain, been: new Set(), told: []};
}"""
# Whether this is a new place: at the end, or where it has been, the round is over.
_AFTER_A_TAB = """() => {
  const tabs = window.__tabs, e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement || tabs.been.has(e)) return false;
  tabs.been.add(e);
  tabs.left.delete(tabs.group(e));
  document.getAnimations().forEach(a => { try { a.finish() } catch {} });
  if (tabs.plain.get(e) === tabs.looks(e))
    tabs.told.push(`focus: nothing shows that this has the focus: ${e.outerHTML.slice(0, 200)}`);
  return true;
}"""
_AFTER_TABS = """through => {
  const {told, left} = window.__tabs;
  delete window.__tabs;
  document.activeElement?.blur();
  if (!through) return told;
  return told.concat([...left.values()].map(e => `focus: Tab does not come by this: ${e.outerHTML.slice(0, 200)}`));
}"""


async def barriers(page: Page) -> list[str]:
    """Return the barriers, a line each; a line begins with axe-core's rule, or with "overflow" or "focus".

    The check goes through the page by Tab, and takes the focus away at the end. Without axe-core the test is skipped,
    or fails in CI.
    """
    await page.evaluate(_axe())  # not as a tag, which the page's own policy for scripts would refuse
    found: list[str] = await page.evaluate(_RUN_AXE, list(TAGS))
    found += await page.evaluate(_WIDER)
    return found + await _by_tab(page)


async def assert_usable(page: Page) -> None:
    """No barriers. Raises: AssertionError with all of them."""
    found = await barriers(page)
    assert not found, "\n".join([f"{page.url} {page.viewport_size}:", *found])


async def _by_tab(page: Page) -> list[str]:
    await page.evaluate(_BEFORE_TABS)
    through = False
    for _ in range(MOST_STOPS):
        await page.keyboard.press("Tab")
        through = not await page.evaluate(_AFTER_A_TAB)
        if through:
            break
    told: list[str] = await page.evaluate(_AFTER_TABS, through)
    return told


@functools.cache
def _axe() -> str:
    def unpack(package: Path, folder: Path) -> None:
        shutil.copy(package / "axe.min.js", folder)

    try:
        return (unpacked(AXE, "1", unpack) / "axe.min.js").read_text()
    except DevFailure as error:
        refuse(str(error))
