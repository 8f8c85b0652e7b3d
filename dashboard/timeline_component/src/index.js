// The component as Streamlit mounts it: its elements, gestures, keys, search and its part of the URL.

import { hear } from "./gestures.js";
import { BENEATH } from "./layout.js";
import { drawOver } from "./overlay.js";
import { button, element, eventPanel, keysPanel, measurePanel } from "./panel.js";
import { Search } from "./search.js";
import { span } from "./time_text.js";
import { Timeline } from "./timeline.js";
import { remembered, remember } from "./url.js";

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
      overlay: (context) => drawOver(this, context),
      label: (strip) => this.labelOf(strip),
      mapLabel: () => this.data.texts.overview,
      share: () => [SHARES[this.shareName][0], this.data.colours.states[SHARES[this.shareName][1]]],
    });
    const { state } = this.timeline;
    const first = kept.open ?? this.data.open.map(String);
    state.open = new Set(first);
    state.pins = kept.pins ?? [];
    state.moved = kept.moved ?? [];
    state.marks = kept.marks ?? [];
    this.timeline.align(kept.align ?? null);
    this.showAlign();
    if (!data.window) this.whole();
    this.parts.map.style.height = `${this.timeline.mapHeight()}px`;
    this.timeline.lay();
    if (kept.event) this.restore(kept.event);
    if (kept.find) this.search.look(kept.find);
    this.root.timeline = this.timeline; // for tests
    hear(this);
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
    this.showAlign();
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
    this.search = new Search(this);
    this.share = element("select", {
      "aria-label": say("colour of the overview"), onchange: () => {
        this.shareName = this.share.value;
        this.timeline.map = null;
        this.timeline.isDirty = true;
      },
    }, ...Object.keys(SHARES).map((one) => element("option", { value: one }, say(one))));
    this.alignment = element("span", { class: "align", hidden: "" });
    const icon = (sign, label, clicked) => element("button", {
      type: "button", title: say(label), "aria-label": say(label), onclick: clicked,
    }, sign);
    this.bar = element("div", { class: "bar" },
      icon("↶", "back", () => this.timeline.back()),
      icon("⤢", "all of it", () => this.whole()),
      icon("+", "closer", () => this.timeline.zoom(0.5)),
      icon("−", "further", () => this.timeline.zoom(2)),
      this.search.field,
      icon("‹", "previous", () => this.search.step(-1)),
      icon("›", "next", () => this.search.step(1)),
      this.search.hits, element("span", { class: "fill" }), this.alignment, this.share,
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

  /** Which steps of two captures begin at the same place. */
  showAlign() {
    const { sides, state } = this.timeline;
    this.alignment.hidden = sides.length < 2 || sides.every((one) => !one.steps.length);
    if (this.alignment.hidden) return;
    const chosen = state.align ?? this.data.beside.align;
    const pick = (number) => {
      const label = `${this.say("step")} ${"AB"[number]}`;
      const options = sides[number].steps.map(({ step }) => element("option", { value: step },
        `${label} · ${step}`));
      const made = element("select", {
        "aria-label": `${this.say("steps that begin together")}: ${label}`,
        onchange: () => {
          const picked = [...this.alignment.querySelectorAll("select")];
          this.timeline.align(picked.map((one) => Number(one.value)));
          this.timeline.lay();
        },
      }, ...options);
      made.value = String(chosen[number]);
      return made;
    };
    this.alignment.replaceChildren(pick(0), " = ", pick(1));
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
    const { sides } = this.timeline ?? { sides: [] };
    if (strip.type === "capture") return `${"AB"[strip.side]}: ${strip.label}`;
    if (strip.type === "rank") {
      const why = sides[strip.side]?.silent[strip.rank];
      const letter = sides.length > 1 ? `${"AB"[strip.side]} · ` : "";
      return `${letter}${this.say("rank")} ${strip.rank}${why ? ` · ${why}` : ""}`;
    }
    if (strip.type === "fold") {
      const why = strip.why === null ? this.say("being computed") : strip.why;
      return `${this.say(FOLDS[strip.part])}${why ? ` · ${why}` : ""}`;
    }
    const label = this.data.texts[strip.label] ?? strip.label;
    return strip.track.unit ? `${label} (${strip.track.unit})` : label;
  }

  clear() {
    this.selection = null;
    this.told = null;
    this.stretch = null;
    this.show(null);
    this.settled();
  }

  // ---- selection, arrows, search ----------------------------------------------------------

  /** The capture of an event. */
  sideOf(event) {
    return this.timeline.sides[event.strip.side];
  }

  async select(event) {
    this.selection = event;
    this.told = null;
    const { rank, track } = event.strip;
    this.live.textContent = `${event.name}, ${span(event.dur)}, ${this.labelOf(event.strip)}`;
    this.describe();
    const described = this.made;
    this.settled();
    if (event.count > 1 || !["stream", "group", "host"].includes(track.kind)) return;
    const told = await this.sideOf(event).tiles.json("event", {
      rank, kind: track.kind, start_ns: event.start, dur_ns: event.dur,
      key: track.key, name: event.name,
    });
    if (this.selection !== event) return;
    this.told = told;
    if (this.made === described) this.describe(); // not over a note that is being written
  }

  describe() {
    const go = (target) => this.go(target);
    const isAlone = this.timeline.sides.length < 2;
    const made = eventPanel(this.selection, this.told, this.say, (one) =>
      `${isAlone ? "" : `${"AB"[one.side]} · `}${one.rank < 0 ? "" : `${this.say("rank")} ${one.rank} · `}${this.labelOf(one)}`, go,
    () => this.askSlack());
    this.show(made);
  }

  /** How much longer the selected operation may take: a replay of all ranks, so only when asked. */
  async askSlack() {
    const event = this.selection;
    const told = await this.sideOf(event).tiles.json("slack", {
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
    const { strip } = this.selection;
    const rank = target.rank ?? strip.rank;
    const { timeline } = this;
    const side = timeline.sides[strip.side];
    const fold = `${strip.side ? BENEATH : ""}${rank}`;
    timeline.state.open.add(fold);
    if (target.part !== "device") timeline.state.open.add(`${fold}:${target.part}`);
    timeline.lay();
    await side.tiles.askTracks(target.part, [rank]);
    const half = (timeline.view.end - timeline.view.start) / 2;
    const at = target.start_ns + side.shift;
    timeline.look(at - half, at + half);
    this.scrollTo((one) => one.side === strip.side && one.rank === rank && (!target.thread
      || one.track?.key?.endsWith(`/${target.thread}`)) && one.part === target.part);
  }

  scrollTo(fits) {
    const { timeline } = this;
    const strip = timeline.strips.find(fits);
    if (!strip) return;
    const isSeen = strip.y >= timeline.scrollTop
      && strip.y + strip.height <= timeline.scrollTop + timeline.height;
    if (!isSeen) timeline.scroll(strip.y - timeline.height / 3 - timeline.scrollTop);
  }

  /** Move the selected event's track, or its rank, up or down. */
  moveSelected(by, isRank) {
    const { timeline } = this;
    const own = this.selection?.strip;
    const strip = isRank ? timeline.strips.find((one) => one.type === "rank"
      && one.side === own?.side && one.rank === own.rank) : own;
    if (!strip || !timeline.move(strip, by)) return;
    this.scrollTo((one) => one.type === strip.type && one.side === strip.side
      && one.rank === strip.rank && one.part === strip.part && one.number === strip.number
      && one.isPinned === strip.isPinned);
  }

  fit(event) {
    const more = Math.max(event.dur * 0.6, 50);
    const start = event.start + this.sideOf(event).shift;
    this.timeline.look(start - more, start + event.dur + more);
  }

  whole() {
    const { least, most } = this.timeline.bounds();
    this.timeline.look(least, most);
  }

  /** The event before or after the selected one in its row. */
  neighbour(by) {
    const from = this.selection;
    if (!from) {
      const strip = this.timeline.visible().find((one) => one.type === "track" && one.number > 0);
      if (!strip) return;
      this.selectNear(strip, 0, this.timeline.view.start - this.sideOf({ strip }).shift, 1);
      return;
    }
    this.selectNear(from.strip, from.row, by > 0 ? from.end : from.start, by);
  }

  selectNear(strip, row, ns, by) {
    const { timeline } = this;
    const scene = timeline.scene(strip);
    let best = null;
    const reach = (timeline.view.end - timeline.view.start) * 2;
    const [low, high] = by > 0 ? [ns, ns + reach] : [ns - reach, ns];
    for (const { tile, level: of } of scene.tiles.shown(
      strip.part, strip.rank, scene.level, low, high)) {
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
    const start = best.start + scene.shift;
    if (start < timeline.view.start || best.end + scene.shift > timeline.view.end) {
      const half = (timeline.view.end - timeline.view.start) / 2;
      timeline.look(start - half, start + half);
    }
  }

  /** What runs in the stretch, on the ranks in sight of either capture. */
  async measured() {
    const { from, to } = this.stretch;
    const { sides } = this.timeline;
    const told = await Promise.all(sides.map((side, number) => {
      const ranks = [...new Set(this.timeline.visible().filter((one) => one.side === number)
        .map((one) => one.rank))].filter((one) => one >= 0).slice(0, 16);
      return ranks.length && side.tiles.json("measured", {
        part: "device", ranks: ranks.join("."), from_ns: Math.round(from - side.shift),
        to_ns: Math.round(Math.max(to, from + 1) - side.shift),
      });
    }));
    const rows = told.flatMap((found, number) => (found || []).map((one) =>
      (sides.length > 1 ? { ...one, rank: `${"AB"[number]} ${one.rank}` } : one)));
    if (told.some(Boolean)) this.show(measurePanel({ from, to, rows }, this.say));
  }

  mark() {
    const { marks } = this.timeline.state;
    const shift = this.selection ? this.sideOf(this.selection).shift : 0;
    const chosen = this.stretch ?? (this.selection
      ? { from: this.selection.start + shift, to: this.selection.end + shift }
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
    this.show(keysPanel(this.say));
  }

  save() {
    const { map, ruler, canvas } = this.parts;
    const { ratio, sides } = this.timeline;
    const head = Math.round(20 * ratio);
    const picture = document.createElement("canvas");
    picture.width = canvas.width;
    picture.height = head + map.height + ruler.height + canvas.height;
    const context = picture.getContext("2d");
    context.fillStyle = this.data.colours.background;
    context.fillRect(0, 0, picture.width, picture.height);
    // What it is of, since nothing else of the page is on it.
    context.fillStyle = this.data.colours.text;
    context.font = `600 ${Math.round(12 * ratio)}px system-ui, 'Noto Sans CJK SC', sans-serif`;
    context.textBaseline = "middle";
    const names = sides.map((one, number) =>
      `${sides.length > 1 ? `${"AB"[number]}: ` : ""}${one.name}`);
    context.fillText(names.join("   "), 6 * ratio, head / 2);
    let top = head;
    for (const one of [map, ruler, canvas]) {
      context.drawImage(one, 0, top);
      top += one.height;
    }
    const link = element("a", { href: picture.toDataURL("image/png"), download: "timeline.png" });
    link.click();
  }

  // ---- the URL ----------------------------------------------------------------------------

  settled() {
    const { timeline } = this;
    const { start, end } = timeline.view;
    const { least, most } = timeline.bounds();
    const isWhole = start <= least && end >= most;
    const event = this.selection && this.selection.count === 1 ? this.selection : null;
    remember({
      zero: this.data.zero, window: isWhole ? null : [start, end],
      open: [...timeline.state.open], pins: timeline.state.pins,
      moved: timeline.state.moved, marks: timeline.state.marks,
      align: timeline.state.align, find: this.search.text,
      event: event && {
        side: event.strip.side, rank: event.strip.rank, part: event.strip.part, kind: event.strip.track.kind,
        key: event.strip.track.key, row: event.row, start: event.start, dur: event.dur,
        name: event.name,
      },
      usual: this.data.open.map(String),
    });
  }

  async restore(kept) {
    const { timeline } = this;
    const number = timeline.sides.length > 1 ? kept.side ?? 0 : 0;
    const { tiles } = timeline.sides[number];
    await tiles.askTracks(kept.part, [kept.rank]);
    const wait = () => tiles.tracksOf(kept.part, kept.rank);
    for (let tries = 0; !wait() && tries < 100; tries++) {
      await new Promise((done) => setTimeout(done, 50));
    }
    const strip = timeline.strips.find((one) => one.side === number && one.rank === kept.rank
      && one.track?.kind === kept.kind && one.track.key === kept.key);
    if (!strip) return;
    this.select({ strip, row: kept.row, start: kept.start, dur: kept.dur, count: 1,
      name: kept.name, cls: 0, end: kept.start + kept.dur });
    this.scrollTo((one) => one === strip);
  }
}

function luminance(colour) {
  const found = /^#([0-9a-f]{6})/i.exec(colour);
  if (!found) return 1;
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(found[1].slice(at, at + 2), 16));
  return (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
}
