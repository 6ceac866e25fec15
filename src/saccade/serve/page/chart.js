// A chart of times over tokens on log axes, drawn at the width that it has.
import { accent, h, svg, whole } from "./dom.js";

const HEIGHT = 340, LEFT = 62, RIGHT = 66, TOP = 14, BOTTOM = 44;
const MARKS = { softmax: [], direct: ["dotted"], linear: [] };

/** From how many tokens to how many milliseconds, on log axes between measured points. */
export function timeAt(curve, tokens) {
  const known = Object.entries(curve).map(([n, ms]) => [Number(n), ms]).sort((a, b) => a[0] - b[0]);
  if (!known.length || tokens < known[0][0] || tokens > known.at(-1)[0]) return null;
  const above = known.findIndex(([n]) => n >= tokens);
  if (known[above][0] === tokens) return known[above][1];
  const [[n0, t0], [n1, t1]] = [known[above - 1], known[above]];
  return Math.exp(Math.log(t0) + (Math.log(tokens / n0) / Math.log(n1 / n0)) * Math.log(t1 / t0));
}

/**
 * Draw the curves of the forms.
 * `crossings` are marked where the linear curve meets the slower one; `tokens` is a line down.
 */
export function drawChart(place, { times, crossings, colors, tokens, title }) {
  const points = Object.values(times).flatMap((curve) => Object.entries(curve).map(([n, ms]) => [Number(n), ms]));
  if (!points.length) {
    place.replaceChildren(h("p", { class: "help empty" }, "Nothing is measured yet."));
    return;
  }
  const width = Math.max(280, place.clientWidth);
  const range = (index) => [Math.min(...points.map((p) => p[index])), Math.max(...points.map((p) => p[index]))];
  const [n0, n1] = range(0), [t0, t1] = range(1);
  const [low, high] = [Math.floor(Math.log10(t0)), Math.max(Math.ceil(Math.log10(t1)), Math.floor(Math.log10(t0)) + 1)];
  const x = (n) => LEFT + (width - LEFT - RIGHT) * (n1 > n0 ? Math.log(n / n0) / Math.log(n1 / n0) : 0.5);
  const y = (ms) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (Math.log10(ms) - low) / (high - low));
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, height: String(HEIGHT), role: "img", "aria-label": title });
  axes(drawing, { width, x, y, n0, n1, low, high });
  if (tokens >= n0 && tokens <= n1) drawing.append(svg("line", { class: "cursor", x1: x(tokens), x2: x(tokens), y1: TOP, y2: HEIGHT - BOTTOM }));
  const ends = [];
  for (const [form, curve] of Object.entries(times)) {
    const line = Object.entries(curve).map(([n, ms]) => [x(Number(n)), y(ms)]);
    if (!line.length) continue;
    const group = svg("g", { vars: accent(colors[form]), "data-form": form });
    group.append(svg("polyline", { class: ["curve", ...MARKS[form]].join(" "), points: line.map((p) => p.join(",")).join(" ") }));
    for (const [cx, cy] of line) group.append(svg("circle", { class: "dot", cx, cy, r: 3 }));
    ends.push({ form, group, at: line.at(-1) });
    drawing.append(group);
  }
  nameEnds(ends, width);
  const marks = crossings.filter(({ slower, tokens: n }) => n !== null && times[slower]).sort((a, b) => a.tokens - b.tokens);
  marks.forEach(({ tokens: n }, i) => markCrossing(drawing, x, y, n, timeAt(times.linear, n), i % 2 === 1));
  place.replaceChildren(drawing);
}

function axes(drawing, { width, x, y, n0, n1, low, high }) {
  for (let power = low; power <= high; power += 1) {
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(10 ** power), y2: y(10 ** power) }));
    const label = svg("text", { x: LEFT - 8, y: y(10 ** power) + 4, "text-anchor": "end" });
    label.textContent = powerOfTen(power);
    drawing.append(label);
  }
  const every = Math.max(1, Math.ceil(Math.log2(n1 / n0) / ((width - LEFT - RIGHT) / 62)));
  for (let power = Math.ceil(Math.log2(n0)); 2 ** power <= n1; power += every) {
    const n = 2 ** power;
    const label = svg("text", { x: x(n), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" });
    label.textContent = whole(n);
    drawing.append(label);
  }
  const name = svg("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" });
  name.textContent = "tokens";
  drawing.append(name);
}

/** 10^power milliseconds as a short text. */
function powerOfTen(power) {
  if (power >= 3) return `${10 ** (power - 3)} s`;
  if (power >= 0) return `${10 ** power} ms`;
  return power >= -3 ? `${10 ** (power + 3)} µs` : `${10 ** (power + 6)} ns`;
}

/** Names at the right end of the curves, apart from each other. */
function nameEnds(ends, width) {
  ends.sort((a, b) => a.at[1] - b.at[1]);
  let last = -Infinity;
  for (const { form, group, at } of ends) {
    const place = Math.max(at[1] + 4, last + 15);
    last = place;
    const label = svg("text", { class: "name", x: Math.min(at[0] + 9, width - RIGHT + 9), y: place });
    label.textContent = form;
    group.append(label);
  }
}

function markCrossing(drawing, x, y, tokens, ms, isAbove) {
  if (ms === null) return;
  drawing.append(svg("circle", { class: "cross", cx: x(tokens), cy: y(ms), r: 5.5 }));
  const label = svg("text", { class: "cross-name", x: x(tokens), y: y(ms) + (isAbove ? -13 : 22), "text-anchor": "middle" });
  label.textContent = whole(tokens);
  drawing.append(label);
}
