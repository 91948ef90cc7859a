"""Chromium for the tests of the page, driven by Playwright, with nothing but loopback to reach."""

from collections.abc import AsyncIterator
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

from tests.spark.browser import find

PHONE, DESKTOP = (390, 844), (1440, 900)
_SWITCHES = (
    "--no-sandbox",  # a container has none to give, and the page is our own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


async def browsers() -> AsyncIterator[Browser]:
    """Run a browser with a profile of its own."""
    program = find()
    assert program is not None, "there is a browser"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(_SWITCHES))
        try:
            yield browser
        finally:
            await browser.close()


async def tab(
    browser: Browser, size: tuple[int, int], *, dark: bool = False, script: bool = True
) -> Page:
    """Open an empty page of this size, in a context of its own."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        java_script_enabled=script,
    )
    return await context.new_page()


async def picture(page: Page, path: Path) -> None:
    """Write a picture of the whole page."""
    await page.screenshot(path=path, full_page=True)
