"""The timeline of a page in a real browser, and what can be done with it."""

from __future__ import annotations

from typing import Any

from tests.dashboard.app.served_pages import Visit

GUTTER = 150
TIMELINE = """() => {
    const roots = [document, ...[...document.querySelectorAll('*')]
        .map(one => one.shadowRoot).filter(Boolean)];
    return roots.map(one => one.querySelector('.timeline')).find(Boolean).timeline;
}"""
SETTLED = f"() => ({TIMELINE})()?.isSettled()"


class Timeline:
    """The timeline of a visited page, and what can be done with it."""

    def __init__(self, seen: Visit) -> None:
        self.seen = seen
        self.tab = seen.tab
        self.settle()
        box = self.tab.locator(".tracks").bounding_box()
        assert box is not None
        self.box = box

    def settle(self) -> None:
        self.tab.wait_for_function(SETTLED, timeout=20_000)

    def of(self, expression: str) -> Any:
        return self.tab.evaluate(f"() => {{ const it = ({TIMELINE})(); return {expression}; }}")

    def window(self) -> tuple[float, float]:
        view = self.of("it.view")
        return view["start"], view["end"]

    def length(self) -> float:
        start, end = self.window()
        return end - start

    def press(self, *keys: str) -> None:
        self.tab.locator(".tracks").focus()
        for key in keys:
            self.tab.keyboard.press(key)

    def place(self, x: float, y: float) -> tuple[float, float]:
        return self.box["x"] + x, self.box["y"] + y

    def drag(self, by_x: float, *, shift: bool = False) -> None:
        if shift:
            self.tab.keyboard.down("Shift")
        self.tab.mouse.move(*self.place(500, 200))
        self.tab.mouse.down()
        self.tab.mouse.move(*self.place(500 + by_x, 200), steps=5)
        self.tab.mouse.up()
        if shift:
            self.tab.keyboard.up("Shift")

    def find(self, text: str) -> None:
        self.tab.locator(".timeline input[type=search]").fill(text)
        self.tab.locator(".timeline input[type=search]").press("Enter")
        self.tab.locator(".panel h4").wait_for()
        self.settle()

    def panel(self) -> str:
        return self.tab.locator(".panel").inner_text()
