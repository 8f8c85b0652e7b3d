// What of the timeline stands in the URL: its window as pages have it, and a text of its own.

const MOST_FOUND = 100;
const MOST = 1800; // letters of that text, as the server allows

/** Put the window and what is shown into the URL, without a new page. */
export function remember(told) {
  const { zero, window: shown, open, pins, moved, marks, align, find, event, usual } = told;
  const url = new URL(location.href);
  if (shown) {
    url.searchParams.set("start_ns", String(BigInt(zero) + BigInt(Math.round(shown[0]))));
    url.searchParams.set("end_ns", String(BigInt(zero) + BigInt(Math.round(shown[1]))));
  } else {
    url.searchParams.delete("start_ns");
    url.searchParams.delete("end_ns");
  }
  const kept = {};
  if (String(open) !== String(usual)) kept.open = open.slice(0, 64);
  if (pins.length) kept.pins = pins.slice(0, 16);
  if (moved.length) kept.moved = moved;
  if (marks.length) kept.marks = marks.slice(0, 16);
  if (align) kept.align = align;
  if (find) kept.find = find.slice(0, MOST_FOUND);
  if (event) kept.event = event;
  const text = JSON.stringify(kept);
  if (text === "{}" || text.length > MOST) url.searchParams.delete("shown");
  else url.searchParams.set("shown", text);
  if (url.href !== location.href) history.replaceState(history.state, "", url);
}

/** What the URL says of what is shown, as far as it can be meant. */
export function remembered() {
  let kept;
  try {
    kept = JSON.parse(new URL(location.href).searchParams.get("shown") ?? "{}");
  } catch {
    return {};
  }
  const isText = (one) => typeof one === "string" && one.length < 200;
  const found = {};
  if (Array.isArray(kept?.open)) found.open = kept.open.filter(isText);
  if (Array.isArray(kept?.pins)) {
    found.pins = kept.pins.filter((one) => isText(one) && one.split(":").length > 3);
  }
  if (Array.isArray(kept?.moved)) {
    found.moved = kept.moved.slice(0, 32).filter((one) => Array.isArray(one) && isText(one[0])
      && Number.isInteger(one[1]) && one[1] >= 0);
  }
  if (Array.isArray(kept?.marks)) {
    found.marks = kept.marks
      .filter((one) => Number.isFinite(one?.from) && Number.isFinite(one?.to))
      .map(({ from, to, text }) => ({ from, to, text: isText(text) ? text : "" }));
  }
  const align = kept?.align;
  if (Array.isArray(align) && align.length === 2 && align.every(Number.isSafeInteger)) {
    found.align = align;
  }
  if (isText(kept?.find) && kept.find.length <= MOST_FOUND) found.find = kept.find;
  const event = kept?.event;
  const numbers = ["rank", "row", "start", "dur"];
  const texts = ["part", "kind", "key", "name"];
  if (event && numbers.every((one) => Number.isFinite(event[one]))
    && texts.every((one) => isText(event[one]))
    && ["device", "host"].includes(event.part)) {
    found.event = { ...event, side: event.side === 1 ? 1 : 0 };
  }
  return found;
}
