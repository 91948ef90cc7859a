"""The page in Chromium: how it looks, with a keyboard, without script, and what it asks for."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from brokerd.ids import show
from tests.integration.http.page.browser import DESKTOP, PHONE, browsers, tab
from tests.integration.http.page.scene import Scene, scene_at
from tests.spark.browser import find

pytestmark = [
    pytest.mark.skipif(find() is None, reason="Chromium is not installed"),
    pytest.mark.asyncio(loop_scope="module"),
]
WIDER_THAN_THE_SCREEN = """
document.documentElement.scrollWidth - document.documentElement.clientWidth
"""
HEIGHT = "document.documentElement.scrollHeight"
HARD_TO_READ = """
(() => {
  const parse = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((one) => {
      const part = one / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !one.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(ground(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.add(`${one.tagName}.${one.className} ${contrast.toFixed(2)}`);
  }
  return [...found];
})()
"""
WITHOUT_A_NAME = """
[...document.querySelectorAll('a, button, input, select, textarea')]
  .filter((one) => one.type !== 'hidden' && one.checkVisibility())
  .filter((one) => !(one.textContent.trim() || one.labels?.length || one.ariaLabel))
  .map((one) => one.outerHTML)
"""
TOO_SMALL_TO_TOUCH = """
[...document.querySelectorAll('nav a, tbody th a, button, .deed, .choice a, select, input')]
  .filter((one) => one.type !== 'hidden' && one.type !== 'checkbox' && one.checkVisibility())
  .filter((one) => one.getBoundingClientRect().height < 30)
  .map((one) => one.outerHTML)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async for one in scene_at(tmp_path_factory.mktemp("scene")):
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async for one in browsers():
        yield one


class Watched:
    """A tab, and what it complained of and asked for."""

    def __init__(self, page: Page, scene: Scene) -> None:
        self.page = page
        self.root = scene.here.root
        self.complaints: list[str] = []
        self.asked_for: list[str] = []
        page.on("console", lambda one: self.complaints.append(one.text))
        page.on("pageerror", lambda one: self.complaints.append(str(one)))
        page.on("request", lambda one: self.asked_for.append(one.url))

    async def open(self, path: str, query: dict[str, str] | None = None) -> None:
        answer = await self.page.goto(f"{self.root}{path}?{urlencode(query or {})}")
        assert answer is not None
        assert answer.status == 200, await answer.text()


async def let_in(
    browser: Browser,
    scene: Scene,
    size: tuple[int, int],
    *,
    dark: bool = False,
    script: bool = True,
) -> Watched:
    page = await tab(browser, size, dark=dark, script=script)
    await page.goto(await scene.here.address())
    return Watched(page, scene)


@pytest.mark.rule("MON-58", "SX-11")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
async def test_every_section_fits_and_can_be_read_and_asks_nobody_else(
    browser: Browser, scene: Scene, size: tuple[int, int], dark: bool
) -> None:
    watched = await let_in(browser, scene, size, dark=dark)
    page = watched.page
    for name, (path, query) in scene.pages.items():
        await watched.open(path, query)
        assert await page.evaluate(WIDER_THAN_THE_SCREEN) <= 0, name
        assert await page.evaluate(HARD_TO_READ) == [], name
        assert await page.evaluate(WITHOUT_A_NAME) == [], name
        if size is PHONE:
            assert await page.evaluate(TOO_SMALL_TO_TOUCH) == [], name
    assert watched.complaints == [], "the policy of the listener blocks nothing of the page"
    assert {one for one in watched.asked_for if not one.startswith(watched.root)} == set()
    await page.context.close()


@pytest.mark.rule("MON-58")
async def test_a_keyboard_is_enough(browser: Browser, scene: Scene) -> None:
    watched = await let_in(browser, scene, DESKTOP)
    page = watched.page
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "focus can be seen"
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await page.keyboard.press("/")
    await expect(page.locator("#search")).to_be_focused()
    await page.keyboard.type(show(scene.dialog)[:6])
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/dialogs?q=*")
    await page.locator("tbody th a").first.focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/dialog?*")
    await expect(page.locator("#timeline li").first).to_be_visible()
    await page.go_back()
    await page.wait_for_url("**/dialogs?q=*")
    await page.context.close()


@pytest.mark.rule("MON-52", "MON-58")
async def test_the_timeline_shows_both_instances(browser: Browser, scene: Scene) -> None:
    watched = await let_in(browser, scene, DESKTOP)
    await watched.open("/dialog", {"handle": show(scene.dialog)})
    sides = watched.page.locator(".side")
    await expect(sides).to_have_count(2)
    await expect(sides.nth(0)).to_contain_text("urn:shop at here")
    await expect(sides.nth(1)).to_contain_text("urn:warehouse at depot")
    moments = watched.page.locator("#timeline li")
    await expect(moments.first).to_have_class("initiator")
    assert await watched.page.locator("#timeline li.target").count() >= 2
    await watched.page.context.close()


@pytest.mark.rule("MON-47", "MON-58")
async def test_a_table_is_a_list_of_cards_on_a_phone(browser: Browser, scene: Scene) -> None:
    watched = await let_in(browser, scene, PHONE)
    await watched.open("/queues")
    row = watched.page.locator("tbody tr").first
    assert await row.evaluate("(one) => getComputedStyle(one).display") == "flex"
    label = (
        await row.locator("td")
        .nth(1)
        .evaluate("(one) => getComputedStyle(one, '::before').content")
    )
    assert label == '"waiting"'
    fine = watched.page.locator("tbody tr", has_text="region-00")
    await expect(fine.locator("td:visible")).to_have_text(["fine"])
    for sort in ("need", "name"):
        await watched.open("/queues", {"sort": sort})
        await expect(watched.page.locator("tbody tr")).to_have_count(25)
        assert await watched.page.evaluate(HEIGHT) <= 3 * PHONE[1], "three screens"
    await watched.page.context.close()


@pytest.mark.rule("MON-40")
async def test_it_works_without_script(browser: Browser, scene: Scene) -> None:
    watched = await let_in(browser, scene, DESKTOP, script=False)
    page = watched.page
    await page.get_by_role("link", name="Queues", exact=True).click()
    await page.get_by_role("link", name="invoices").first.click()
    await page.get_by_role("link", name="Switch the queue on…").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Switch a queue on?")
    await page.get_by_role("button", name="Switch on").click()
    await expect(page.locator(".notice")).to_have_text("The queue was switched.")
    await page.get_by_role("link", name="Switch the queue off…").click()
    await page.get_by_role("button", name="Switch off").click()
    await expect(page.locator(".notice")).to_have_text("The queue was switched.")
    await page.context.close()


@pytest.mark.rule("MON-40")
async def test_it_keeps_itself_up_to_date(browser: Browser, scene: Scene) -> None:
    """And it does not take the focus away, or replace what somebody has selected."""
    watched = await let_in(browser, scene, DESKTOP)
    page = watched.page
    await page.clock.install()
    await watched.open("/queue", {"name": "region-11"})
    await expect(page.locator("#messages .empty")).to_have_text("The queue is empty.")
    await page.get_by_role("link", name="Switch the queue off…").focus()
    await scene.here.send(b"new", to="urn:eleven")
    await page.clock.run_for(6_000)
    await expect(page.locator("#messages tbody tr")).to_have_count(1)
    await expect(page.get_by_role("link", name="Switch the queue off…")).to_be_focused()
    await page.get_by_role("button", name="pause").click()
    await scene.here.send(b"newer", to="urn:eleven")
    await page.clock.run_for(60_000)
    await expect(page.locator("#messages tbody tr")).to_have_count(1)
    await page.context.close()


@pytest.mark.rule("MON-54", "MON-58")
async def test_a_message_is_edited_in_the_browser(browser: Browser, scene: Scene) -> None:
    group = await scene.here.park(b'{"sku": 7}\nline', error="ValueError: sku")
    watched = await let_in(browser, scene, PHONE)
    page = watched.page
    await watched.open("/group", {"group": group})
    await page.get_by_role("link", name="Edit…").click()
    await page.get_by_role("button", name="Show the body").click()
    area = page.get_by_label("Body")
    await expect(area).to_have_value('{"sku": 7}\nline')
    await area.fill('{"sku": "7"}\nline')
    await page.get_by_role("button", name="Save and release").click()
    await expect(page.locator(".notice")).to_contain_text("its new body")
    async with scene.here.session.transaction() as tx:
        bodies = [one.body for one in await tx.receive("orders")]
        assert bodies == [b'{"sku": "7"}\nline']
    await page.context.close()


async def pictures(folder: Path, to: Path) -> None:
    """Write pictures of every section in both sizes and themes, to look at."""
    async for scene in scene_at(folder):
        async for browser in browsers():
            for size, word in ((DESKTOP, "desktop"), (PHONE, "phone")):
                for dark in (False, True):
                    watched = await let_in(browser, scene, size, dark=dark)
                    for name, (path, query) in scene.pages.items():
                        await watched.open(path, query)
                        shown = to / f"{name}-{word}-{'dark' if dark else 'light'}.png"
                        await watched.page.screenshot(path=shown, full_page=True)
                    await watched.page.context.close()
