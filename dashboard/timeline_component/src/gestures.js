// What the pointer and the keys do.

import { GUTTER } from "./map.js";
import { span } from "./time_text.js";

/** Hear the pointer and the keys of a mounted component. */
export function hear(it) {
  const { canvas, map } = it.parts;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("wheel", (event) => {
    const [x, y] = place(event);
    event.preventDefault();
    if (x < GUTTER || event.altKey) it.timeline.scroll(event.deltaY);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      it.timeline.pan(event.deltaX || event.deltaY);
    } else it.timeline.zoom(Math.pow(1.0016, event.deltaY), it.timeline.ns(x));
    point(it, x, y);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    it.drag = { x, y, lastX: x, lastY: y, isMeasure: event.shiftKey, isMoved: false };
    if (x < GUTTER) it.drag.strip = it.timeline.at(x, y).strip;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    const drag = it.drag;
    if (drag) {
      drag.isMoved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 4;
      if (drag.isMeasure) {
        const ends = [it.timeline.ns(drag.x), it.timeline.ns(x)].sort((a, b) => a - b);
        it.stretch = { from: ends[0], to: ends[1] };
      } else if (drag.isMoved && drag.x >= GUTTER) {
        it.timeline.pan(drag.lastX - x);
        it.timeline.scroll(drag.lastY - y);
      } else if (drag.isMoved && (drag.strip?.track || drag.strip?.type === "rank")) {
        it.timeline.carry(drag.strip, y);
      }
      [drag.lastX, drag.lastY] = [x, y];
    }
    point(it, x, y);
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = place(event);
    const drag = it.drag;
    it.drag = null;
    if (!drag) return;
    if (drag.isMeasure && drag.isMoved) it.measured();
    else if (!drag.isMoved) click(it, x, y, event);
  });
  canvas.addEventListener("dblclick", (event) => {
    const { event: found } = it.timeline.at(...place(event));
    if (found) it.fit(found);
  });
  canvas.addEventListener("pointerleave", () => point(it, null));
  canvas.addEventListener("keydown", (event) => key(it, event));
  canvas.addEventListener("keyup", (event) => it.timeline.moves.delete(event.key.toLowerCase()));
  canvas.addEventListener("blur", () => it.timeline.moves.clear());
  const toMap = (event) => {
    const box = map.getBoundingClientRect();
    const { least, most } = it.timeline.bounds();
    const share = (event.clientX - box.left - GUTTER) / (box.width - GUTTER);
    const at = least + share * (most - least);
    const half = (it.timeline.view.end - it.timeline.view.start) / 2;
    it.timeline.look(at - half, at + half);
  };
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    it.isOnMap = true;
    toMap(event);
  });
  map.addEventListener("pointermove", (event) => it.isOnMap && toMap(event));
  map.addEventListener("pointerup", () => { it.isOnMap = false; });
  map.addEventListener("wheel", (event) => {
    event.preventDefault();
    it.timeline.zoom(Math.pow(1.0016, event.deltaY));
  }, { passive: false });
  it.resized = new ResizeObserver(() => {
    it.timeline.isDirty = true;
    it.timeline.settle();
  });
  it.resized.observe(canvas);
}

function key(it, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const name = event.key.toLowerCase();
  const scroll = (by, px) => {
    if (event.shiftKey) it.moveSelected(by, name.startsWith("page"));
    else it.timeline.scroll(by * px);
  };
  const told = {
    f: () => it.selection && it.fit(it.selection),
    m: () => it.mark(),
    p: () => it.selection?.strip && it.timeline.pin(it.selection.strip),
    n: () => it.search.step(event.shiftKey ? -1 : 1),
    "/": () => it.search.field.focus(),
    "0": () => it.whole(), home: () => it.whole(),
    backspace: () => it.timeline.back(),
    escape: () => it.clear(),
    arrowright: () => it.neighbour(1), arrowleft: () => it.neighbour(-1),
    arrowdown: () => scroll(1, 60), arrowup: () => scroll(-1, 60),
    pagedown: () => scroll(1, 300), pageup: () => scroll(-1, 300),
    "+": () => it.timeline.zoom(0.5), "-": () => it.timeline.zoom(2),
  }[name];
  if ("wasd".includes(name) && name.length === 1) it.timeline.moves.add(name);
  else if (told) told();
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function point(it, x, y) {
  const { timeline } = it;
  timeline.isDirty = true;
  if (x === null || x < GUTTER) {
    timeline.cursor = undefined;
    it.tip.hidden = true;
    return;
  }
  timeline.cursor = timeline.ns(x);
  const { event } = timeline.at(x, y);
  it.hovered = event;
  it.tip.hidden = !event || Boolean(it.drag?.isMoved);
  if (!event) return;
  const several = event.count > 1 ? ` · ${event.count} ${it.say("events")}` : "";
  it.tip.textContent = `${it.say(event.name)} · ${span(event.dur)}${several}`;
  it.tip.style.transform = `translate(${Math.min(x + 14, timeline.width - 120)}px, ${y + 16}px)`;
}

function click(it, x, y, event) {
  const found = it.timeline.at(x, y);
  const strip = found.strip;
  if (strip?.fold && (x < GUTTER || !found.event)) {
    it.timeline.toggle(strip.fold);
    return;
  }
  if (strip?.track && x < GUTTER) it.timeline.pin(strip);
  else if (found.event) it.select(found.event);
  else if (!event.shiftKey) it.clear();
}
