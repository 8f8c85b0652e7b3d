// What lies over the tracks: borders of steps, marks, the measured stretch, outlines and arrows.

import { ROW } from "./layout.js";
import { span } from "./time_text.js";

const FONT = "600 11px system-ui, 'Noto Sans CJK SC', sans-serif";

/** Draw all of it; `it` is the mounted component. */
export function drawOver(it, context) {
  const { timeline } = it;
  const { colours } = it.data;
  const height = timeline.height;
  timeline.sides.forEach((side, number) => borders(timeline, side, number, context, colours));
  for (const mark of timeline.state.marks) {
    const [left, right] = [timeline.x(mark.from), timeline.x(mark.to)];
    context.globalAlpha = 0.14;
    context.fillStyle = colours.accent;
    context.fillRect(left, 0, Math.max(right - left, 1), height);
    context.globalAlpha = 1;
    context.fillRect(left, 0, 1.5, height);
    context.font = FONT;
    context.fillText(`⚑ ${mark.text}`, left + 4, height - 10);
  }
  if (it.stretch) {
    const [left, right] = [timeline.x(it.stretch.from), timeline.x(it.stretch.to)];
    context.globalAlpha = 0.2;
    context.fillStyle = colours.accent;
    context.fillRect(left, 0, right - left, height);
    context.globalAlpha = 1;
    context.fillStyle = colours.text;
    context.fillText(span(it.stretch.to - it.stretch.from), left + 4, 10);
  }
  outline(it, context, it.hovered, 1);
  outline(it, context, it.selection, 2);
  arrows(it, context);
  if (timeline.cursor !== undefined) {
    context.fillStyle = colours.text;
    context.globalAlpha = 0.5;
    context.fillRect(timeline.x(timeline.cursor), 0, 1, height);
    context.globalAlpha = 1;
  }
}

/** Where steps of a capture begin, over its own tracks. */
function borders(timeline, side, number, context, colours) {
  const own = timeline.strips.filter((one) => one.side === number && !one.isPinned);
  if (!own.length) return;
  const last = own[own.length - 1];
  const isAlone = timeline.sides.length < 2;
  const top = isAlone ? 0 : own[0].y - timeline.scrollTop;
  const height = isAlone ? timeline.height : last.y + last.height - own[0].y;
  context.fillStyle = colours.line;
  for (const step of side.steps) {
    const start = step.start + side.shift;
    if (start < timeline.view.start || start > timeline.view.end) continue;
    context.fillRect(timeline.x(start), top, 1, height);
  }
}

/** Where an event stands in the picture; null where its track is folded. */
function boxOf(it, event) {
  const { timeline } = it;
  const strip = timeline.strips.find((one) => one.type === event.strip.type
    && one.side === event.strip.side
    && one.rank === event.strip.rank && one.part === event.strip.part
    && one.number === event.strip.number && one.isPinned === event.strip.isPinned);
  if (!strip) return null;
  const row = ["overlap", "path"].includes(strip.track?.kind) ? 0 : event.row;
  return {
    x: timeline.x(event.start + it.sideOf(event).shift),
    width: Math.max((event.end - event.start) / timeline.nsPerPx, 2),
    y: strip.y - timeline.scrollTop + row * ROW, height: ROW,
  };
}

function outline(it, context, event, width) {
  const box = event && boxOf(it, event);
  if (!box) return;
  context.strokeStyle = it.data.colours.text;
  context.lineWidth = width;
  context.strokeRect(box.x - 0.5, box.y + 0.5, box.width + 1, box.height - 1);
}

/** From the host to what it launched, and to the members of a collective. */
function arrows(it, context) {
  const { selection, told, timeline } = it;
  const from = selection && told && boxOf(it, selection);
  timeline.arrows = []; // as they are drawn: kind, from where, to where
  if (!from) return;
  const { shift } = it.sideOf(selection);
  const strips = timeline.strips.filter((one) => one.side === selection.strip.side);
  const middle = [from.x, from.y + from.height / 2];
  const arrow = (kind, begin, end) => {
    timeline.arrows.push({ kind, from: begin, to: end });
    drawArrow(context, begin, end);
  };
  context.strokeStyle = it.data.colours.accent;
  context.fillStyle = it.data.colours.accent;
  context.lineWidth = 1.5;
  if (told.launch?.start_ns !== undefined && told.launch?.start_ns !== null) {
    const host = strips.find((one) => one.rank === selection.strip.rank
      && one.part === "host" && (one.type === "fold" ? !one.isOpen
        : one.track?.key.endsWith(`/${told.launch.thread}`)));
    if (host) {
      const x = timeline.x(told.launch.start_ns + shift);
      arrow("launch", [x, host.y - timeline.scrollTop + 10], middle);
    }
  }
  for (const one of told.launched) {
    const strip = strips.find((s) => s.rank === selection.strip.rank
      && s.part === "device" && s.number === 1);
    if (!strip) continue;
    arrow("launched", middle, [timeline.x(one.start_ns + shift), strip.y - timeline.scrollTop + 8]);
  }
  for (const one of told.members) {
    if (one.rank === selection.strip.rank) continue;
    const key = selection.strip.track.key;
    const strip = strips.find((s) => s.rank === one.rank
      && s.track?.kind === "group" && s.track.key === key)
      ?? strips.find((s) => s.type === "rank" && s.rank === one.rank);
    if (!strip) continue;
    const y = strip.y - timeline.scrollTop + 9;
    const start = one.start_ns + shift;
    const [left, right] = [timeline.x(start), timeline.x(start + one.dur_ns)];
    context.lineWidth = 2;
    context.strokeRect(left, y - 8, Math.max(right - left, 2), 16);
    context.lineWidth = 1.5;
    arrow("member", middle, [left, y]);
  }
}

function drawArrow(context, [x0, y0], [x1, y1]) {
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

