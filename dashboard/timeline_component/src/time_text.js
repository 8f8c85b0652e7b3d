// Lengths of time and instants, for people.

/** The next of 1, 2, 5, 10, ... of a unit. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= value);
}

const UNITS = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];

/** A length of time for people. */
export function span(ns) {
  const [unit, size] = UNITS.find(([, one]) => Math.abs(ns) >= one) ?? UNITS[3];
  return `${(ns / size).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
}

/** An instant, with as many digits as steps of such a length need. */
export function instant(ns, step) {
  const [unit, size] = UNITS.find(([, one]) => step >= one) ?? UNITS[3];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size)));
  const value = Number((ns / size).toFixed(Math.min(digits, 20))) || 0; // 0 has no sign
  return `${value.toLocaleString("en", { maximumFractionDigits: digits })} ${unit}`;
}

/** A text, shortened to what fits into so many px. */
export function fitted(text, px) {
  const letters = Math.floor(px / 6);
  return text.length <= letters ? text : `${text.slice(0, letters - 1)}…`;
}
