// What was looked for, in all events of the first ranks of each capture, and where one stands in it.

import { BENEATH } from "./layout.js";
import { element } from "./panel.js";

const MOST_RANKS = 64;
const AT_ONCE = 16;

export class Search {
  /** `it` is the mounted component. */
  constructor(it) {
    this.it = it;
    this.found = [];
    this.text = "";
    const label = it.say("search events");
    this.field = element("input", {
      type: "search", placeholder: label, "aria-label": label,
      onkeydown: (event) => this.key(event),
    });
    this.hits = element("span", { class: "soft", role: "status" });
  }

  key(event) {
    event.stopPropagation();
    if (event.key === "Escape") this.field.value = "";
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    const text = this.field.value.trim();
    if (text && text === this.text) this.step(event.shiftKey ? -1 : 1);
    else this.look(text, true);
  }

  /** Look for a text, show all else faintly, and go to the first hit where that is wanted. */
  async look(text, isGoing = false) {
    const { timeline } = this.it;
    this.field.value = text;
    this.text = text;
    timeline.searched = text.toLowerCase();
    timeline.chunks.clear();
    timeline.isDirty = true;
    this.found = [];
    this.at = -1;
    this.hits.textContent = "";
    this.it.settled();
    if (!text) return;
    let count = 0;
    const found = [];
    for (const [number, side] of timeline.sides.entries()) {
      for (let at = 0; at < Math.min(side.ranks.length, MOST_RANKS); at += AT_ONCE) {
        const ranks = side.ranks.slice(at, at + AT_ONCE).join(".");
        const told = await side.tiles.json("found", { part: "device", ranks, text });
        count += told?.count ?? 0;
        found.push(...(told?.rows ?? []).map((one) => ({ ...one, side: number })));
      }
    }
    if (text !== this.text) return; // something else is looked for by now
    const startOf = (one) => one.start_ns + timeline.sides[one.side].shift;
    found.sort((a, b) => startOf(a) - startOf(b) || a.side - b.side || a.rank - b.rank);
    this.found = found;
    this.count = count;
    if (found.length) {
      this.hits.textContent = count.toLocaleString("en");
      if (isGoing) this.step(1);
      return;
    }
    this.hits.textContent = `${this.it.say("no event found")}: ${text}`;
    if (isGoing) this.it.clear(); // what is selected is none of them
  }

  /** The next or the previous of what was found. */
  async step(by) {
    if (!this.found.length) return;
    this.at = (this.at + by + this.found.length) % this.found.length;
    const one = this.found[this.at];
    this.hits.textContent = `${this.at + 1} / ${this.count.toLocaleString("en")}`;
    const { timeline } = this.it;
    const side = timeline.sides[one.side];
    timeline.state.open.add(`${one.side ? BENEATH : ""}${one.rank}`);
    await side.tiles.askTracks("device", [one.rank]);
    timeline.lay();
    const { start, end } = timeline.view;
    const at = one.start_ns + side.shift;
    const half = Math.min((end - start) / 2, Math.max(one.dur_ns * 20, 2e3));
    if (at < start || at + one.dur_ns > end || one.dur_ns * 200 < end - start) {
      timeline.look(at - half, at + half);
    }
    const strip = timeline.strips.find((s) => s.side === one.side && !s.isPinned
      && s.part === "device" && s.rank === one.rank && s.number === one.track);
    if (!strip) return;
    this.it.scrollTo((s) => s === strip);
    this.it.select({
      strip, row: 0, start: one.start_ns, dur: one.dur_ns, count: 1, name: one.name, cls: 0,
      end: one.start_ns + one.dur_ns,
    });
  }
}
