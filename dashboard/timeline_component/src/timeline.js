// The timeline itself: what is in sight, how it is drawn, and what gestures change.

import { drawStrips, eventAt } from "./draw.js";
import { ROW, movedAs, pinOf, pinned, strips } from "./layout.js";
import { GUTTER, drawMap, drawRuler, mapHeight } from "./map.js";
import { Side } from "./side.js";
import { levelOf } from "./tiles.js";
import { fitted } from "./time_text.js";

const CHUNK = 256; // px of a picture that is drawn once
const LEAST_NS = 50; // no window is shorter
const SETTLED_MS = 30;
const EAGER_MS = 150;
const MOST_MOVED = 32;
const BUDGET_MS = 7; // of a frame, for pictures that are missing

export class Timeline {
  constructor(parts, data, told) {
    this.parts = parts; // map, ruler, canvas
    this.told = told; // called with what others are to know
    this.view = { start: 0, end: 1 };
    this.state = { open: new Set(), pins: [], moved: [], marks: [], align: null };
    this.sides = [];
    this.scrollTop = 0;
    this.chunks = new Map();
    this.scale = 0;
    this.scaledAt = 0;
    this.selection = null;
    this.details = null;
    this.measure = null;
    this.hover = null;
    this.searched = "";
    this.past = [];
    this.moves = new Set();
    this.isDirty = true;
    this.setData(data);
    this.loop = (now) => {
      this.frame(now);
      this.request = requestAnimationFrame(this.loop);
    };
    this.request = requestAnimationFrame(this.loop);
  }

  close() {
    cancelAnimationFrame(this.request);
    clearTimeout(this.settling);
  }

  setData(data) {
    const isAsked = JSON.stringify(data.window) !== JSON.stringify(this.data?.window);
    const before = this.sides.map((one) => one.is);
    this.data = data;
    this.sides = [data, data.beside].filter(Boolean).map((told, number) => {
      const more = { change: number ? "" : data.change, lang: data.lang };
      const old = this.sides[number];
      const side = old?.is === JSON.stringify([told.place, told.version]) ? old
        : new Side(told, data.base, more, (from, to) => this.arrived(from, to));
      if (side !== old) side.askOverview();
      side.tell(told, more);
      return side;
    });
    this.tiles = this.sides[0].tiles;
    this.align(this.state.align);
    if (this.sides[0].is !== before[0] || isAsked) {
      const { least, most } = this.bounds();
      const [start, end] = data.window ?? [least, most];
      this.view = { start, end };
    }
    this.lay();
  }

  /** Put the capture beneath so that one of its steps begins with one of the other's; without steps
   * to choose, those that the page says. */
  align(steps) {
    const [a, b] = this.sides;
    this.state.align = b ? steps : null;
    if (!b) return;
    const [first, second] = steps ?? this.data.beside.align;
    b.shift = a.startOf(first) - b.startOf(second);
    this.map = null;
    this.chunks.clear();
    this.isDirty = true;
  }

  /** What drawing a strip needs of its capture. */
  scene(strip) {
    const side = this.sides[strip.side];
    return {
      tiles: side.tiles, colours: this.data.colours, overview: side.overview,
      searched: this.searched, hasTiles: side.hasFew, shift: side.shift, level: this.level,
      height: this.height,
    };
  }

  /** From where to where anything is, of either capture. */
  bounds() {
    return {
      least: Math.min(...this.sides.map((one) => one.shift)),
      most: Math.max(...this.sides.map((one) => one.shift + one.extent)),
    };
  }

  // ---- what is in sight -------------------------------------------------------------------

  get width() {
    return Math.max(this.parts.canvas.clientWidth - GUTTER, 50);
  }

  get height() {
    return this.parts.canvas.clientHeight;
  }

  get nsPerPx() {
    return (this.view.end - this.view.start) / this.width;
  }

  /** The level of the tiles that are drawn. */
  get level() {
    return levelOf(this.nsPerPx, this.width, Math.ceil(this.height / ROW) + 1);
  }

  x(ns) {
    return GUTTER + (ns - this.view.start) / this.nsPerPx;
  }

  ns(x) {
    return this.view.start + (x - GUTTER) * this.nsPerPx;
  }

  /** Strips anew, after something was folded, pinned, or arrived. */
  lay() {
    const replayed = this.data.change ? ["path", "whatif"] : ["path"];
    const made = strips(this.state, this.sides, replayed);
    this.strips = made.strips;
    this.total = made.height;
    this.scrollTop = Math.max(0, Math.min(this.scrollTop, this.total - this.height));
    this.chunks.clear();
    this.isDirty = true;
    this.settle();
  }

  /** Strips that can be seen. */
  visible() {
    return this.strips.filter(
      (one) => one.y < this.scrollTop + this.height && one.y + one.height > this.scrollTop,
    );
  }

  look(start, end, isKept = true) {
    const { least, most } = this.bounds();
    const extent = most - least;
    let length = Math.max(end - start, LEAST_NS);
    length = Math.min(length, extent * 1.1);
    start = Math.min(Math.max(start, least - 0.05 * extent), most + 0.05 * extent - length);
    if (isKept && (!this.past.length || performance.now() - this.scaledAt > 700)) {
      this.past.push({ ...this.view });
      this.past.splice(0, this.past.length - 100);
    }
    const isPanned = Math.abs(length - (this.view.end - this.view.start)) < 1e-6 * length;
    this.towards = isPanned ? Math.sign(start - this.view.start) : 0;
    this.view = { start, end: start + length };
    this.scaledAt = performance.now();
    this.isDirty = true;
    // The first of some gestures asks at once, the last when it is known to be that.
    if (this.scaledAt - (this.askedAt ?? 0) > EAGER_MS) {
      this.askedAt = this.scaledAt;
      this.askShown();
    }
    this.settle();
  }

  zoom(factor, at = (this.view.start + this.view.end) / 2) {
    const { start, end } = this.view;
    this.look(at - (at - start) * factor, at + (end - at) * factor);
  }

  pan(px) {
    const by = px * this.nsPerPx;
    this.look(this.view.start + by, this.view.end + by);
  }

  back() {
    const before = this.past.pop();
    if (before) this.look(before.start, before.end, false);
  }

  scroll(px) {
    const before = this.scrollTop;
    this.scrollTop = Math.max(0, Math.min(this.scrollTop + px, this.total - this.height));
    if (this.scrollTop === before) return;
    this.chunks.clear();
    this.isDirty = true;
    this.settle();
  }

  toggle(fold) {
    if (!this.state.open.delete(fold)) this.state.open.add(fold);
    this.lay();
  }

  pin(strip) {
    const name = pinOf(strip);
    const at = this.state.pins.indexOf(name);
    if (at >= 0) this.state.pins.splice(at, 1);
    else this.state.pins.push(name);
    this.lay();
  }

  /** What a strip can change places with, from the top: pins, tracks of one part, ranks. */
  siblings(strip) {
    const isAlike = (one) => one.type === strip.type && one.side === strip.side
      && !one.isPinned === !strip.isPinned
      && (one.type === "rank" || (one.rank === strip.rank && one.part === strip.part));
    return this.strips.filter(strip.isPinned ? (one) => one.isPinned : isAlike);
  }

  /** Move a track or a rank up (-1) or down (1) among its like; whether there was a place. */
  move(strip, by) {
    const names = this.siblings(strip).map(movedAs);
    const name = movedAs(strip);
    const at = names.indexOf(name);
    const to = at + by;
    if (at < 0 || to < 0 || to >= names.length) return false;
    const { pins, moved } = this.state;
    if (strip.isPinned) {
      const [one, other] = [pins.indexOf(name), pins.indexOf(names[to])];
      [pins[one], pins[other]] = [pins[other], pins[one]];
    } else {
      if (moved.at(-1)?.[0] === name) moved.pop(); // one way, however many steps
      moved.push([name, to]);
      moved.splice(0, moved.length - MOST_MOVED);
    }
    this.lay();
    return true;
  }

  /** Move a track or a rank towards where it is dragged, a height of the canvas. */
  carry(strip, y) {
    const at = y + this.scrollTop;
    for (let steps = 0; steps < 64; steps++) {
      const alike = this.siblings(strip);
      const place = alike.findIndex((one) => movedAs(one) === movedAs(strip));
      if (place < 0) return;
      const bottom = (one) => {
        if (one.type !== "rank") return one.y + one.height;
        const next = this.strips.find((s) => s.y > one.y && ["rank", "capture"].includes(s.type));
        return next?.y ?? this.total;
      };
      const heightOf = (one) => bottom(one) - one.y;
      const [before, own, after] = [alike[place - 1], alike[place], alike[place + 1]];
      // There when it would lie under the pointer: else a short one jumps about a tall one.
      let by = 0;
      if (before && at < before.y + heightOf(own)) by = -1;
      else if (after && at >= own.y + heightOf(after)) by = 1;
      if (!by || !this.move(strip, by)) return;
    }
  }

  settle() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.askShown();
      this.told.settled();
    }, SETTLED_MS);
  }

  /** Tracks and tiles of all that is in sight. */
  askShown() {
    const visible = this.visible();
    const pins = this.state.pins.map(pinned);
    this.sides.forEach((side, number) => side.ask(
      visible.filter((one) => one.side === number), pins.filter((one) => one.side === number),
      this.level, this.view, this.towards));
  }

  arrived(from, to) {
    if (from === -Infinity) {
      this.map = null;
      this.lay();
      return;
    }
    for (const [index, chunk] of this.chunks) {
      if (chunk.from < to && chunk.to > from) chunk.isOld = true;
    }
    this.isDirty = true;
  }

  /** Whether all that is in sight is drawn from tiles of its own level. */
  isSettled() {
    if (this.scale !== this.nsPerPx) return false;
    const isThere = (one) => this.sides[one.side].has(one, this.level, this.view);
    if (!this.visible().every(isThere)) return false;
    const [first, last] = this.inSight(this.scale);
    for (let index = first; index <= last; index++) {
      if (this.chunks.get(index)?.isOld !== false) return false;
    }
    return true;
  }

  /** How many rectangles of events the picture in sight is made of. */
  get rectangles() {
    return [...this.chunks.values()].reduce((sum, { from, to, drawn }) =>
      sum + (from < this.view.end && to > this.view.start ? drawn : 0), 0);
  }

  // ---- pictures ---------------------------------------------------------------------------

  frame(now) {
    this.keep(now);
    const { canvas, map, ruler } = this.parts;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const one of [canvas, map, ruler]) {
      const [width, height] = [one.clientWidth * ratio, one.clientHeight * ratio];
      if (one.width !== Math.round(width) || one.height !== Math.round(height)) {
        [one.width, one.height] = [Math.round(width), Math.round(height)];
        this.chunks.clear();
        this.map = null;
        this.isDirty = true;
      }
    }
    if (!this.isDirty || !canvas.width) return;
    this.isDirty = false;
    this.ratio = ratio;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, this.height);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.width, this.height);
    context.clip();
    this.drawChunks(context, now);
    this.told.overlay(context, this);
    context.restore();
    this.drawLabels(context);
    drawRuler(this, ruler.getContext("2d"), ratio);
    drawMap(this, map.getContext("2d"), ratio);
  }

  drawChunks(context, now) {
    const scale = this.nsPerPx;
    const isMoving = scale !== this.scale && now - this.scaledAt < SETTLED_MS && this.chunks.size;
    if (isMoving) {
      // Until the scale stands, what was drawn is stretched.
      for (const chunk of this.chunks.values()) this.blit(context, chunk);
      this.isDirty = true;
      return;
    }
    if (scale !== this.scale) {
      this.before = this.chunks;
      this.chunks = new Map();
      this.scale = scale;
    }
    const began = performance.now();
    const [first, last] = this.inSight(scale);
    let isWhole = true;
    for (let index = first; index <= last; index++) {
      const chunk = this.chunks.get(index);
      const isLate = performance.now() - began > BUDGET_MS;
      if (!chunk || chunk.isOld) {
        if (isLate && (chunk || this.before)) {
          isWhole = false;
          if (!chunk) for (const one of this.before.values()) this.blit(context, one, index);
        } else this.chunks.set(index, this.drawChunk(index, scale, chunk));
      }
      const drawn = this.chunks.get(index);
      if (drawn) this.blit(context, drawn);
    }
    if (isWhole) {
      this.before = null;
      // One more on either side while there is time, so that panning meets it ready.
      for (const index of [last + 1, first - 1]) {
        if (performance.now() - began > BUDGET_MS / 2) break;
        if (!this.chunks.has(index)) this.chunks.set(index, this.drawChunk(index, scale));
      }
    } else this.isDirty = true;
    for (const index of this.chunks.keys()) {
      if (index < first - 8 || index > last + 8) this.chunks.delete(index);
    }
  }

  /** The first and the last of the pictures that the view takes. */
  inSight(scale) {
    return [this.view.start, this.view.end].map((ns) => Math.floor(ns / scale / CHUNK));
  }

  drawChunk(index, scale, before) {
    const canvas = before?.canvas ?? document.createElement("canvas");
    canvas.width = CHUNK * this.ratio;
    canvas.height = this.height * this.ratio;
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const from = index * CHUNK * scale;
    const to = from + CHUNK * scale;
    const [top, height] = [this.scrollTop, this.height];
    const drawn = drawStrips(
      context, this.strips, top, height, from, to, scale, (one) => this.scene(one));
    return { canvas, from, to, drawn, isOld: false };
  }

  blit(context, chunk, only = null) {
    const left = this.x(chunk.from);
    const width = (chunk.to - chunk.from) / this.nsPerPx;
    if (left > GUTTER + this.width || left + width < GUTTER || width < 0.01) return;
    if (only !== null) {
      const begin = only * CHUNK * this.scale;
      if (chunk.to < begin || chunk.from > begin + CHUNK * this.scale) return;
    }
    const isSame = Math.abs(width - CHUNK) < 1e-6;
    const x = isSame ? Math.round(left * this.ratio) / this.ratio : left;
    context.drawImage(chunk.canvas, x, 0, isSame ? CHUNK : width, this.height);
  }

  drawLabels(context) {
    const { colours } = this.data;
    context.font = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = colours.background;
    context.fillRect(0, 0, GUTTER, this.height);
    for (const strip of this.visible()) {
      const top = strip.y - this.scrollTop;
      const told = this.told.label(strip);
      const isBold = strip.type === "rank" || strip.type === "capture";
      const isHead = strip.type === "rank" || strip.type === "fold";
      context.fillStyle = isBold ? colours.head : colours.background;
      context.fillRect(0, top, GUTTER, strip.height - 1);
      context.fillStyle = isHead || isBold ? colours.text : colours.soft;
      if (isBold) context.font = "600 12px system-ui, 'Noto Sans CJK SC', sans-serif";
      const indent = isBold ? 6 : strip.type === "fold" ? 16 : 28;
      const sign = isHead ? (strip.isOpen ? "▾ " : "▸ ") : "";
      const middle = top + Math.min(strip.height - 1, ROW) / 2 + 1;
      context.fillText(fitted(`${sign}${told}`, GUTTER - indent - 4), indent, middle);
      context.font = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
      if (strip.isPinned) context.fillText("★", 8, middle);
    }
    context.fillStyle = colours.line;
    context.fillRect(GUTTER - 1, 0, 1, this.height);
  }

  mapHeight() {
    return mapHeight(this.sides.reduce((sum, one) => sum + one.ranks.length, 0));
  }

  // ---- gestures that go on while a key is held --------------------------------------------

  keep(now) {
    const passed = Math.min(now - (this.kept ?? now), 50);
    this.kept = now;
    if (!this.moves.size) return;
    const by = (passed / 1000) * this.width * 1.2;
    if (this.moves.has("a")) this.pan(-by);
    if (this.moves.has("d")) this.pan(by);
    const at = this.cursor ?? (this.view.start + this.view.end) / 2;
    if (this.moves.has("w")) this.zoom(Math.pow(0.25, passed / 400), at);
    if (this.moves.has("s")) this.zoom(Math.pow(4, passed / 400), at);
  }

  /** The strip and event below a point of the canvas. */
  at(x, y) {
    const strip = this.visible().find(
      (one) => y + this.scrollTop >= one.y && y + this.scrollTop < one.y + one.height,
    );
    if (!strip || x < GUTTER) return { strip: strip ?? null, event: null };
    if (strip.type !== "track") return { strip, event: null };
    const row = Math.floor((y + this.scrollTop - strip.y) / ROW);
    const scene = this.scene(strip);
    return { strip, event: eventAt(strip, row, this.ns(x) - scene.shift, this.nsPerPx, scene) };
  }
}
