// The component as Streamlit mounts it: its elements, gestures, keys, search and its part of the URL.

import { button, element, eventPanel, measurePanel } from "./panel.js";
import { GUTTER, Timeline, span } from "./timeline.js";
import { remembered, remember } from "./url.js";
import { ROW } from "./layout.js";

const mounted = new WeakMap();
const FOLDS = {
  host: "host threads", curves: "memory and counters", path: "critical path",
  whatif: "steps with the change",
};
const SHARES = {
  computing: ["computing", 0], "exposed communication": ["exposed", 2],
  "masked communication": ["masked", 1], free: ["free", 3],
};

export default function timeline({ data, parentElement }) {
  let one = mounted.get(parentElement);
  if (one) one.update(data);
  else {
    one = new Mounted(parentElement, data);
    mounted.set(parentElement, one);
  }
  return () => {
    one.close();
    mounted.delete(parentElement);
  };
}

class Mounted {
  constructor(parent, data) {
    this.root = parent.querySelector(".timeline");
    this.data = this.themed(data);
    this.say = (text) => this.data.texts[text] ?? text;
    this.shareName = "computing";
    this.build();
    const kept = remembered();
    this.timeline = new Timeline(this.parts, this.data, {
      settled: () => this.settled(),
      overlay: (context) => this.overlay(context),
      label: (strip) => this.labelOf(strip),
      mapLabel: () => this.data.texts.overview,
      share: () => [SHARES[this.shareName][0], this.data.colours.states[SHARES[this.shareName][1]]],
    });
    const { state } = this.timeline;
    const first = kept.open ?? this.data.open.map(String);
    state.open = new Set(first);
    state.pins = kept.pins ?? [];
    state.marks = kept.marks ?? [];
    this.parts.map.style.height = `${this.timeline.mapHeight()}px`;
    this.timeline.lay();
    if (kept.event) this.restore(kept.event);
    this.root.timeline = this.timeline; // for tests
    this.hear();
  }

  /** Colours of the theme in use: Streamlit tells them as CSS variables. */
  themed(data) {
    const style = getComputedStyle(this.root);
    const of = (name, other) => style.getPropertyValue(name).trim() || other;
    const text = of("--st-text-color", "#22303a");
    const isDark = luminance(of("--st-background-color", "#ffffff")) < 0.5;
    const colours = {
      ...data.colours,
      text, background: of("--st-background-color", "#ffffff"),
      head: of("--st-secondary-background-color", "#f3f5f7"),
      line: of("--st-border-color", "#e1e5ea"),
      soft: isDark ? "#aab4bd" : "#55626d", accent: of("--st-primary-color", "#1f6f8b"),
      veil: isDark ? "rgba(0,0,0,.55)" : "rgba(255,255,255,.6)",
    };
    return { ...data, colours };
  }

  update(data) {
    this.data = this.themed(data);
    this.timeline.setData(this.data);
    this.parts.map.style.height = `${this.timeline.mapHeight()}px`;
  }

  close() {
    this.timeline.close();
    this.resized?.disconnect();
  }

  // ---- elements ---------------------------------------------------------------------------

  build() {
    const say = this.say;
    this.root.replaceChildren();
    this.search = element("input", {
      type: "search", placeholder: say("search events"), "aria-label": say("search events"),
      onkeydown: (event) => this.searchKey(event),
    });
    this.hits = element("span", { class: "soft", role: "status" });
    this.share = element("select", {
      "aria-label": say("colour of the overview"), onchange: () => {
        this.shareName = this.share.value;
        this.timeline.map = null;
        this.timeline.isDirty = true;
      },
    }, ...Object.keys(SHARES).map((one) => element("option", { value: one }, say(one))));
    const icon = (sign, label, clicked) => element("button", {
      type: "button", title: say(label), "aria-label": say(label), onclick: clicked,
    }, sign);
    this.bar = element("div", { class: "bar" },
      icon("↶", "back", () => this.timeline.back()),
      icon("⤢", "all of it", () => this.whole()),
      icon("+", "closer", () => this.timeline.zoom(0.5)),
      icon("−", "further", () => this.timeline.zoom(2)),
      this.search, icon("‹", "previous", () => this.step(-1)), icon("›", "next", () => this.step(1)),
      this.hits, element("span", { class: "fill" }), this.share,
      icon("⚑", "mark the selection", () => this.mark()),
      icon("PNG", "save as a picture", () => this.save()),
      icon("?", "keys", () => this.keys()));
    const map = element("canvas", { class: "map", "aria-hidden": "true" });
    const ruler = element("canvas", { class: "ruler", "aria-hidden": "true" });
    const canvas = element("canvas", {
      class: "tracks", tabindex: "0", role: "application",
      "aria-label": say("Timeline: W and S zoom, A and D move, arrows go from event to event."),
    });
    this.panel = element("aside", { class: "panel", hidden: "", "aria-label": say("details") });
    this.tip = element("div", { class: "tip", hidden: "" });
    this.live = element("div", { class: "live", "aria-live": "polite" });
    this.legend = this.makeLegend();
    const stage = element("div", { class: "stage" }, canvas, this.panel, this.tip);
    this.root.append(this.bar, map, ruler, stage, this.legend, this.live);
    this.parts = { map, ruler, canvas };
  }

  makeLegend() {
    const { colours } = this.data;
    const made = element("p", { class: "legend" });
    const put = (colour, name) => made.append(element("span", {},
      element("i", { style: `background:${colour}` }), this.say(name)));
    colours.states.slice(0, 3).forEach((one, at) => put(one, this.data.states[at]));
    colours.classes.forEach((one, at) => put(one, this.data.classes[at]));
    for (const kind of this.data.kinds) put(colours.groups[kind] ?? colours.groups.unknown, kind);
    return made;
  }

  labelOf(strip) {
    if (strip.type === "rank") {
      const why = this.data.silent[strip.rank];
      return `${this.say("rank")} ${strip.rank}${why ? ` · ${why}` : ""}`;
    }
    if (strip.type === "fold") {
      const why = strip.why === null ? this.say("being computed") : strip.why;
      return `${this.say(FOLDS[strip.part])}${why ? ` · ${why}` : ""}`;
    }
    const label = this.data.texts[strip.label] ?? strip.label;
    return strip.track.unit ? `${label} (${strip.track.unit})` : label;
  }

  // ---- gestures ---------------------------------------------------------------------------

  hear() {
    const { canvas, map } = this.parts;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      const [x, y] = place(event);
      event.preventDefault();
      if (x < GUTTER || event.altKey) this.timeline.scroll(event.deltaY);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.timeline.pan(event.deltaX || event.deltaY);
      } else this.timeline.zoom(Math.pow(1.0016, event.deltaY), this.timeline.ns(x));
      this.point(x, y);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = place(event);
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      this.drag = { x, y, lastX: x, lastY: y, isMeasure: event.shiftKey, isMoved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      const drag = this.drag;
      if (drag) {
        drag.isMoved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 4;
        if (drag.isMeasure) {
          const ends = [this.timeline.ns(drag.x), this.timeline.ns(x)].sort((a, b) => a - b);
          this.stretch = { from: ends[0], to: ends[1] };
        } else if (drag.isMoved && drag.x >= GUTTER) {
          this.timeline.pan(drag.lastX - x);
          this.timeline.scroll(drag.lastY - y);
        }
        [drag.lastX, drag.lastY] = [x, y];
      }
      this.point(x, y);
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = place(event);
      const drag = this.drag;
      this.drag = null;
      if (!drag) return;
      if (drag.isMeasure && drag.isMoved) this.measured();
      else if (!drag.isMoved) this.click(x, y, event);
    });
    canvas.addEventListener("dblclick", (event) => {
      const { event: found } = this.timeline.at(...place(event));
      if (found) this.fit(found);
    });
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("keyup", (event) => this.timeline.moves.delete(event.key.toLowerCase()));
    canvas.addEventListener("blur", () => this.timeline.moves.clear());
    const toMap = (event) => {
      const box = map.getBoundingClientRect();
      const at = ((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * this.data.extent;
      const half = (this.timeline.view.end - this.timeline.view.start) / 2;
      this.timeline.look(at - half, at + half);
    };
    map.addEventListener("pointerdown", (event) => {
      map.setPointerCapture(event.pointerId);
      this.isOnMap = true;
      toMap(event);
    });
    map.addEventListener("pointermove", (event) => this.isOnMap && toMap(event));
    map.addEventListener("pointerup", () => { this.isOnMap = false; });
    map.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.timeline.zoom(Math.pow(1.0016, event.deltaY));
    }, { passive: false });
    this.resized = new ResizeObserver(() => {
      this.timeline.isDirty = true;
      this.timeline.settle();
    });
    this.resized.observe(canvas);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const name = event.key.toLowerCase();
    const told = {
      f: () => this.selection && this.fit(this.selection),
      m: () => this.mark(),
      p: () => this.selection?.strip && this.timeline.pin(this.selection.strip),
      n: () => this.step(event.shiftKey ? -1 : 1),
      "/": () => this.search.focus(),
      "0": () => this.whole(), home: () => this.whole(),
      backspace: () => this.timeline.back(),
      escape: () => this.clear(),
      arrowright: () => this.neighbour(1), arrowleft: () => this.neighbour(-1),
      arrowdown: () => this.timeline.scroll(60), arrowup: () => this.timeline.scroll(-60),
      pagedown: () => this.timeline.scroll(300), pageup: () => this.timeline.scroll(-300),
      "+": () => this.timeline.zoom(0.5), "-": () => this.timeline.zoom(2),
    }[name];
    if ("wasd".includes(name) && name.length === 1) this.timeline.moves.add(name);
    else if (told) told();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  point(x, y) {
    const { timeline } = this;
    timeline.isDirty = true;
    if (x === null || x < GUTTER) {
      timeline.cursor = undefined;
      this.tip.hidden = true;
      return;
    }
    timeline.cursor = timeline.ns(x);
    const { event } = timeline.at(x, y);
    this.hovered = event;
    this.tip.hidden = !event || Boolean(this.drag?.isMoved);
    if (!event) return;
    const several = event.count > 1 ? ` · ${event.count} ${this.say("events")}` : "";
    this.tip.textContent = `${this.say(event.name)} · ${span(event.dur)}${several}`;
    this.tip.style.transform = `translate(${Math.min(x + 14, timeline.width - 120)}px, ${y + 16}px)`;
  }

  click(x, y, event) {
    const found = this.timeline.at(x, y);
    const strip = found.strip;
    if (strip?.fold && (x < GUTTER || !found.event)) {
      this.timeline.toggle(strip.fold);
      return;
    }
    if (strip?.track && x < GUTTER) this.timeline.pin(strip);
    else if (found.event) this.select(found.event);
    else if (!event.shiftKey) this.clear();
  }

  clear() {
    this.selection = null;
    this.told = null;
    this.stretch = null;
    this.show(null);
    this.settled();
  }

  // ---- selection, arrows, search ----------------------------------------------------------

  async select(event) {
    this.selection = event;
    this.told = null;
    const { rank, track } = event.strip;
    this.live.textContent = `${event.name}, ${span(event.dur)}, ${this.labelOf(event.strip)}`;
    this.describe();
    const described = this.made;
    this.settled();
    if (event.count > 1 || !["stream", "group", "host"].includes(track.kind)) return;
    const told = await this.timeline.tiles.json("event", {
      rank, kind: track.kind, start_ns: event.start, dur_ns: event.dur,
    });
    if (this.selection !== event) return;
    this.told = told;
    if (this.made === described) this.describe(); // not over a note that is being written
  }

  describe() {
    const go = (target) => this.go(target);
    const made = eventPanel(this.selection, this.told, this.say, (one) =>
      `${one.rank < 0 ? "" : `${this.say("rank")} ${one.rank} · `}${this.labelOf(one)}`, go,
    () => this.askSlack());
    this.show(made);
  }

  /** How much longer the selected operation may take: a replay of all ranks, so only when asked. */
  async askSlack() {
    const event = this.selection;
    const told = await this.timeline.tiles.json("slack", {
      ranks: event.strip.rank, kind: event.strip.track.kind, start_ns: event.start,
      dur_ns: event.dur,
    });
    if (this.selection !== event || !told) return;
    this.told = { ...this.told, slack: told.reason ?? span(told.slack_ns) };
    this.describe();
  }

  show(made) {
    this.made = made;
    this.panel.hidden = !made;
    this.panel.replaceChildren(...(made ? [button("×", () => this.clear()), made] : []));
    this.panel.firstChild?.setAttribute("aria-label", this.say("close"));
    this.timeline.isDirty = true;
  }

  /** Open and centre what an arrow leads to. */
  async go(target) {
    const rank = target.rank ?? this.selection.strip.rank;
    const { timeline } = this;
    timeline.state.open.add(`${rank}`);
    if (target.part !== "device") timeline.state.open.add(`${rank}:${target.part}`);
    timeline.lay();
    timeline.reveal?.(rank);
    await timeline.tiles.askTracks(target.part, [rank]);
    const half = (timeline.view.end - timeline.view.start) / 2;
    timeline.look(target.start_ns - half, target.start_ns + half);
    this.scrollTo((strip) => strip.rank === rank && (!target.thread
      || strip.track?.key?.endsWith(`/${target.thread}`)) && strip.part === target.part);
  }

  scrollTo(fits) {
    const { timeline } = this;
    const strip = timeline.strips.find(fits);
    if (!strip) return;
    const isSeen = strip.y >= timeline.scrollTop
      && strip.y + strip.height <= timeline.scrollTop + timeline.height;
    if (!isSeen) timeline.scroll(strip.y - timeline.height / 3 - timeline.scrollTop);
  }

  fit(event) {
    const more = Math.max(event.dur * 0.6, 50);
    this.timeline.look(event.start - more, event.start + event.dur + more);
  }

  whole() {
    this.timeline.look(0, this.data.extent);
  }

  /** The event before or after the selected one in its row. */
  neighbour(by) {
    const from = this.selection;
    if (!from) {
      const strip = this.timeline.visible().find((one) => one.type === "track" && one.number > 0);
      if (!strip) return;
      this.selectNear(strip, 0, this.timeline.view.start, 1);
      return;
    }
    this.selectNear(from.strip, from.row, by > 0 ? from.end : from.start, by);
  }

  selectNear(strip, row, ns, by) {
    const { timeline } = this;
    const step = timeline.nsPerPx;
    const scene = timeline.scene();
    const level = Math.max(0, Math.floor(Math.log2(Math.max(step, 1))));
    let best = null;
    const reach = (timeline.view.end - timeline.view.start) * 2;
    const [low, high] = by > 0 ? [ns, ns + reach] : [ns - reach, ns];
    for (const { tile, level: of } of scene.tiles.shown(strip.part, strip.rank, level, low, high)) {
      const columns = tile.get(strip.number);
      if (!columns) continue;
      columns.start.forEach((start, at) => {
        if (columns.row[at] !== row) return;
        const isIt = by > 0 ? start >= ns : start + columns.dur[at] <= ns;
        if (!isIt || (best && (by > 0 ? start >= best.start : start <= best.start))) return;
        const several = columns.count[at] > 1;
        best = {
          strip, row, start, dur: columns.dur[at], count: columns.count[at],
          name: columns.name[at], cls: columns.cls[at],
          end: start + (several ? 2 ** of : columns.dur[at]),
        };
      });
    }
    if (!best) return;
    this.select(best);
    if (best.start < timeline.view.start || best.end > timeline.view.end) {
      const half = (timeline.view.end - timeline.view.start) / 2;
      timeline.look(best.start - half, best.start + half);
    }
  }

  async searchKey(event) {
    event.stopPropagation();
    if (event.key === "Escape") this.search.value = "";
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    const text = this.search.value.trim();
    if (text && text === this.searchedFor) {
      this.step(event.shiftKey ? -1 : 1);
      return;
    }
    this.searchedFor = text;
    this.timeline.searched = text.toLowerCase();
    this.timeline.chunks.clear();
    this.timeline.isDirty = true;
    this.found = [];
    this.at = -1;
    this.hits.textContent = "";
    if (!text) return;
    const ranks = this.data.ranks;
    let count = 0;
    for (let at = 0; at < Math.min(ranks.length, 64); at += 16) {
      const some = ranks.slice(at, at + 16).join(".");
      const told = await this.timeline.tiles.json("found", { part: "device", ranks: some, text });
      count += told?.count ?? 0;
      this.found.push(...(told?.rows ?? []));
    }
    this.found.sort((a, b) => a.start_ns - b.start_ns || a.rank - b.rank);
    this.count = count;
    this.hits.textContent = this.found.length ? `${count.toLocaleString("en")}` : this.say("none");
    if (this.found.length) this.step(1);
  }

  /** The next or the previous of what was found. */
  async step(by) {
    if (!this.found?.length) return;
    this.at = (this.at + by + this.found.length) % this.found.length;
    const one = this.found[this.at];
    this.hits.textContent = `${this.at + 1} / ${this.count.toLocaleString("en")}`;
    const { timeline } = this;
    timeline.state.open.add(`${one.rank}`);
    await timeline.tiles.askTracks("device", [one.rank]);
    timeline.lay();
    const { start, end } = timeline.view;
    const half = Math.min((end - start) / 2, Math.max(one.dur_ns * 20, 2e3));
    if (one.start_ns < start || one.start_ns + one.dur_ns > end || one.dur_ns * 200 < end - start) {
      timeline.look(one.start_ns - half, one.start_ns + half);
    }
    const strip = timeline.strips.find((s) =>
      s.part === "device" && s.rank === one.rank && s.number === one.track);
    if (!strip) return;
    this.scrollTo((s) => s === strip);
    this.select({
      strip, row: 0, start: one.start_ns, dur: one.dur_ns, count: 1, name: one.name, cls: 0,
      end: one.start_ns + one.dur_ns,
    });
  }

  async measured() {
    const { from, to } = this.stretch;
    const ranks = [...new Set(this.timeline.visible().map((one) => one.rank))]
      .filter((one) => one >= 0).slice(0, 16);
    const found = await this.timeline.tiles.json("measured", {
      part: "device", ranks: ranks.join("."),
      from_ns: Math.round(from), to_ns: Math.round(Math.max(to, from + 1)),
    });
    if (found) this.show(measurePanel({ from, to, rows: found }, this.say));
  }

  mark() {
    const { marks } = this.timeline.state;
    const chosen = this.stretch ?? (this.selection
      ? { from: this.selection.start, to: this.selection.end }
      : { from: this.timeline.cursor, to: this.timeline.cursor });
    if (chosen.from === undefined) return;
    const [from, to] = [Math.round(chosen.from), Math.round(chosen.to)];
    const at = marks.findIndex((one) => one.from === from && one.to === to);
    if (at >= 0) marks.splice(at, 1);
    else {
      const mark = { from, to, text: "" };
      marks.push(mark);
      this.note(mark);
    }
    this.timeline.isDirty = true;
    this.settled();
  }

  /** Ask for the words of a mark. */
  note(mark) {
    const field = element("input", {
      maxlength: "80", placeholder: this.say("note"), "aria-label": this.say("note"),
      onkeydown: (event) => {
        event.stopPropagation();
        if (event.key !== "Enter" && event.key !== "Escape") return;
        mark.text = field.value.trim();
        this.parts.canvas.focus();
        this.show(null);
        this.settled();
      },
    });
    this.show(element("div", {}, element("h4", {}, this.say("mark")), field));
    field.focus();
  }

  keys() {
    const list = element("dl");
    for (const [name, what] of [
      ["W S", "closer, further"], ["A D", "earlier, later"], ["wheel", "closer and further at the pointer"],
      ["drag", "move"], ["shift + drag", "measure"], ["F", "fit the selection"],
      ["M", "mark the selection"], ["P", "pin the track"], ["/", "search events"],
      ["N", "next hit"], ["← →", "event before and after"], ["↑ ↓", "scroll"],
      ["Backspace", "back"], ["0", "all of it"], ["Esc", "nothing selected"],
    ]) list.append(element("dt", {}, this.say(name)), element("dd", {}, this.say(what)));
    this.show(element("div", {}, element("h4", {}, this.say("keys")), list));
  }

  save() {
    const { map, ruler, canvas } = this.parts;
    const picture = document.createElement("canvas");
    picture.width = canvas.width;
    picture.height = map.height + ruler.height + canvas.height;
    const context = picture.getContext("2d");
    context.fillStyle = this.data.colours.background;
    context.fillRect(0, 0, picture.width, picture.height);
    context.drawImage(map, 0, 0);
    context.drawImage(ruler, 0, map.height);
    context.drawImage(canvas, 0, map.height + ruler.height);
    const link = element("a", { href: picture.toDataURL("image/png"), download: "timeline.png" });
    link.click();
  }

  // ---- what lies over the tracks ----------------------------------------------------------

  overlay(context) {
    const { timeline } = this;
    const { colours } = this.data;
    const height = timeline.height;
    for (const step of this.data.steps) {
      if (step.start < timeline.view.start || step.start > timeline.view.end) continue;
      context.fillStyle = colours.line;
      context.fillRect(timeline.x(step.start), 0, 1, height);
    }
    for (const mark of timeline.state.marks) {
      const [left, right] = [timeline.x(mark.from), timeline.x(mark.to)];
      context.globalAlpha = 0.14;
      context.fillStyle = colours.accent;
      context.fillRect(left, 0, Math.max(right - left, 1), height);
      context.globalAlpha = 1;
      context.fillRect(left, 0, 1.5, height);
      context.font = "600 11px system-ui, 'Noto Sans CJK SC', sans-serif";
      context.fillText(`⚑ ${mark.text}`, left + 4, height - 10);
    }
    if (this.stretch) {
      const [left, right] = [timeline.x(this.stretch.from), timeline.x(this.stretch.to)];
      context.globalAlpha = 0.2;
      context.fillStyle = colours.accent;
      context.fillRect(left, 0, right - left, height);
      context.globalAlpha = 1;
      context.fillStyle = colours.text;
      context.fillText(span(this.stretch.to - this.stretch.from), left + 4, 10);
    }
    this.outline(context, this.hovered, 1);
    this.outline(context, this.selection, 2);
    this.arrows(context);
    if (timeline.cursor !== undefined) {
      context.fillStyle = colours.text;
      context.globalAlpha = 0.5;
      context.fillRect(timeline.x(timeline.cursor), 0, 1, height);
      context.globalAlpha = 1;
    }
  }

  /** Where an event stands in the picture; null where its track is folded. */
  boxOf(event) {
    const { timeline } = this;
    const strip = timeline.strips.find((one) => one.type === event.strip.type
      && one.rank === event.strip.rank && one.part === event.strip.part
      && one.number === event.strip.number && one.isPinned === event.strip.isPinned);
    if (!strip) return null;
    const row = ["overlap", "path"].includes(strip.track?.kind) ? 0 : event.row;
    return {
      x: timeline.x(event.start), width: Math.max((event.end - event.start) / timeline.nsPerPx, 2),
      y: strip.y - timeline.scrollTop + row * ROW, height: ROW,
    };
  }

  outline(context, event, width) {
    const box = event && this.boxOf(event);
    if (!box) return;
    context.strokeStyle = this.data.colours.text;
    context.lineWidth = width;
    context.strokeRect(box.x - 0.5, box.y + 0.5, box.width + 1, box.height - 1);
  }

  /** From the host to what it launched, and to the members of a collective. */
  arrows(context) {
    const { selection, told, timeline } = this;
    const from = selection && told && this.boxOf(selection);
    if (!from) return;
    const middle = [from.x, from.y + from.height / 2];
    context.strokeStyle = this.data.colours.accent;
    context.fillStyle = this.data.colours.accent;
    context.lineWidth = 1.5;
    if (told.launch?.start_ns !== undefined && told.launch?.start_ns !== null) {
      const host = timeline.strips.find((one) => one.rank === selection.strip.rank
        && one.part === "host" && (one.type === "fold" ? !one.isOpen
          : one.track?.key.endsWith(`/${told.launch.thread}`)));
      if (host) {
        const begin = [timeline.x(told.launch.start_ns), host.y - timeline.scrollTop + 10];
        arrow(context, begin, middle);
      }
    }
    for (const one of told.launched) {
      const strip = timeline.strips.find((s) => s.rank === selection.strip.rank
        && s.part === "device" && s.number === 1);
      if (strip) arrow(context, middle, [timeline.x(one.start_ns), strip.y - timeline.scrollTop + 8]);
    }
    for (const one of told.members) {
      if (one.rank === selection.strip.rank) continue;
      const key = selection.strip.track.key;
      const strip = timeline.strips.find((s) => s.rank === one.rank
        && s.track?.kind === "group" && s.track.key === key)
        ?? timeline.strips.find((s) => s.type === "rank" && s.rank === one.rank);
      if (!strip) continue;
      const y = strip.y - timeline.scrollTop + 9;
      const [left, right] = [timeline.x(one.start_ns), timeline.x(one.start_ns + one.dur_ns)];
      context.lineWidth = 2;
      context.strokeRect(left, y - 8, Math.max(right - left, 2), 16);
      context.lineWidth = 1.5;
      arrow(context, middle, [left, y]);
    }
  }

  // ---- the URL ----------------------------------------------------------------------------

  settled() {
    const { timeline } = this;
    const { start, end } = timeline.view;
    const isWhole = start <= 0 && end >= this.data.extent;
    const event = this.selection && this.selection.count === 1 ? this.selection : null;
    remember({
      zero: this.data.zero, window: isWhole ? null : [start, end],
      open: [...timeline.state.open], pins: timeline.state.pins, marks: timeline.state.marks,
      event: event && {
        rank: event.strip.rank, part: event.strip.part, kind: event.strip.track.kind,
        key: event.strip.track.key, row: event.row, start: event.start, dur: event.dur,
        name: event.name,
      },
      usual: this.data.open.map(String),
    });
  }

  async restore(kept) {
    const { timeline } = this;
    await timeline.tiles.askTracks(kept.part, [kept.rank]);
    const wait = () => timeline.tiles.tracksOf(kept.part, kept.rank);
    for (let tries = 0; !wait() && tries < 100; tries++) {
      await new Promise((done) => setTimeout(done, 50));
    }
    const strip = timeline.strips.find((one) => one.rank === kept.rank
      && one.track?.kind === kept.kind && one.track.key === kept.key);
    if (!strip) return;
    this.select({ strip, row: kept.row, start: kept.start, dur: kept.dur, count: 1,
      name: kept.name, cls: 0, end: kept.start + kept.dur });
    this.scrollTo((one) => one === strip);
  }
}

function arrow(context, [x0, y0], [x1, y1]) {
  const bend = Math.max(Math.abs(x1 - x0) / 2, 24);
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - 7, y1 - 4);
  context.lineTo(x1 - 7, y1 + 4);
  context.fill();
}

function luminance(colour) {
  const found = /^#([0-9a-f]{6})/i.exec(colour);
  if (!found) return 1;
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(found[1].slice(at, at + 2), 16));
  return (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
}
