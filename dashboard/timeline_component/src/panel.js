// What is told of an event, of a stretch of time, and of what was looked for.

import { span } from "./time_text.js";

function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...inside.filter((one) => one !== null));
  return made;
}

export { element };

function rows(pairs) {
  const list = element("dl");
  for (const [name, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(element("dt", {}, name), element("dd", {}, value));
  }
  return list;
}

export function bytes(value) {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
  const [unit, size] = units.find(([, one]) => value >= one) ?? units[3];
  return `${(value / size).toLocaleString("en", { maximumFractionDigits: 2 })} ${unit}`;
}

/** A value of a column by its name, as tables write it: of numbers that are names no digit is
 * set apart. */
export function valueText(name, value) {
  if (typeof value === "object") return JSON.stringify(value);
  if (typeof value !== "number" || name === "step" || /_(id|number)$/.test(name)) return String(value);
  if (name.endsWith("_ns")) return span(value);
  if (name.endsWith("_ratio")) return `${(value * 100).toFixed(1)} %`;
  return value.toLocaleString("en", { maximumFractionDigits: 3 });
}

/** All that is known of an event; `go` jumps to another one. */
export function eventPanel(event, told, say, labelOf, go, askSlack) {
  const row = told?.row ?? {};
  const title = event.strip ? labelOf(event.strip) : "";
  const pairs = [
    [say("length"), span(event.dur)],
    [say("start"), span(event.start)],
    [say("events"), event.count > 1 ? event.count.toLocaleString("en") : null],
  ];
  const rest = { ...row };
  for (const name of ["dur_ns", "name", "type", "op_type"]) delete rest[name];
  if (row.size_bytes) {
    pairs.push([say("size"), bytes(row.size_bytes)]);
    pairs.push([say("bandwidth"), `${bytes((row.size_bytes / row.dur_ns) * 1e9)}/s`]);
    delete rest.size_bytes;
  }
  if (told?.waited_ns !== undefined) pairs.push([say("waited for the last member"), span(told.waited_ns)]);
  const links = element("p", { class: "links" });
  if (told?.launch) {
    pairs.push([say("launched by"), told.launch.name]);
    pairs.push([say("launch latency"), span(told.launch.latency_ns)]);
    links.append(button(say("to its launch"), () => go({ part: "host", ...told.launch })));
  }
  for (const one of told?.members ?? []) {
    const label = `${say("rank")} ${one.rank}: ${span(one.start_ns - event.start)} · ${span(one.dur_ns)}`;
    links.append(button(label, () => go({ part: "device", kind: "group", ...one })));
  }
  for (const one of (told?.launched ?? []).slice(0, 12)) {
    links.append(button(`→ ${one.name}`, () => go({ part: "device", start_ns: one.start_ns })));
  }
  for (const [name, value] of Object.entries(rest)) {
    if (name === "call_stack") continue;
    pairs.push([say(name), valueText(name, value)]);
  }
  if (told?.slack) pairs.push([say("slack"), told.slack]);
  else if (told && ["stream", "group"].includes(event.strip?.track?.kind)) {
    links.append(button(say("how much longer may it take?"), (clicked) => {
      clicked.currentTarget.disabled = true;
      clicked.currentTarget.textContent = say("being computed");
      askSlack();
    }));
  }
  const stack = row.call_stack ? element("pre", {}, row.call_stack) : null;
  const heading = row.type ?? row.op_type ?? event.name;
  const name = row.name && row.name !== heading ? element("p", { class: "name" }, row.name) : null;
  return element("div", {}, element("h4", {}, heading), element("p", { class: "soft" }, title),
    name, rows(pairs), links, stack);
}

export function button(label, clicked) {
  return element("button", { type: "button", onclick: clicked }, label);
}

/** Time and busy time of a stretch, by type. */
export function measurePanel(measure, say) {
  const body = element("tbody");
  for (const one of measure.rows.slice(0, 200)) {
    body.append(element("tr", {},
      element("td", {}, String(one.rank)), element("td", {}, one.name),
      element("td", { class: "number" }, one.count.toLocaleString("en")),
      element("td", { class: "number" }, span(one.total_ns)),
      element("td", { class: "number" }, span(one.busy_ns))));
  }
  const head = element("tr", {}, ...["rank", "type", "events", "time", "busy"].map((one) =>
    element("th", {}, say(one))));
  return element("div", {},
    element("h4", {}, `${say("measured")}: ${span(measure.to - measure.from)}`),
    element("table", {}, element("thead", {}, head), body));
}

/** What keys and gestures do. */
export function keysPanel(say) {
  const list = element("dl");
  for (const [name, what] of [
    ["W S", "closer, further"], ["A D", "earlier, later"],
    ["wheel", "closer and further at the pointer"],
    ["drag", "move"], ["shift + drag", "measure a stretch"], ["F", "fit the selection"],
    ["M", "mark the selection"], ["P", "pin the track"],
    ["shift + ↑ ↓", "move the track"], ["shift + PgUp PgDn", "move the rank"],
    ["drag a name", "move track or rank"], ["/", "search events"],
    ["N", "next hit"], ["← →", "event before and after"], ["↑ ↓", "scroll"],
    ["Backspace", "back"], ["0", "all of it"], ["Esc", "nothing selected"],
  ]) list.append(element("dt", {}, say(name)), element("dd", {}, say(what)));
  return element("div", {}, element("h4", {}, say("keys")), list);
}
