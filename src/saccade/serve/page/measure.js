// Measure: direct, linear and softmax attention timed on this machine while one watches.
import { get, lines } from "./api.js";
import { drawChart, timeAt } from "./chart.js";
import { byId, duration, eachFrame, h, slider, whole } from "./dom.js";
import { shared } from "./shared.js";
import { state, update } from "./state.js";

const DIMS = [16, 32, 64];
const FORMS = ["softmax", "direct", "linear"];
let h200 = null, here = { times: {}, crossings: [], dim: null }, running = null, button = null;

export function prepare() {
  addEventListener("resize", eachFrame(() => draw()));
}

export async function show(changed) {
  if (changed.has("view")) controls();
  if (here.dim !== null && here.dim !== state.dim && !running) here = { times: {}, crossings: [], dim: null };
  try {
    h200 ??= await get("/page/h200.json");
  } catch (error) {
    shared.say(error.message);
  }
  draw();
}

function controls() {
  const segments = h("div", { class: "segments", role: "radiogroup", "aria-label": "Head dimension" }, DIMS.map((dim) => {
    const input = h("input", { type: "radio", name: "dim", value: String(dim), onchange: () => { running?.abort(); update({ dim }); } });
    input.checked = dim === state.dim;
    return h("label", {}, input, h("span", {}, String(dim)));
  }));
  button = h("button", { type: "button", class: "primary", id: "start", onclick: () => (running ? running.abort() : start()) });
  name();
  byId("measure-controls").replaceChildren(
    h("div", { class: "field" }, h("div", { class: "field-head" }, h("b", {}, "Head dimension")), segments),
    slider({ id: "most", label: "Measure up to", min: 9, max: 14, value: Math.log2(state.most), shown: (power) => `${whole(2 ** power)} tokens`, onchange: (power) => update({ most: 2 ** power }) }),
    slider({ id: "tokens", label: "Tokens", min: 6, max: 14, step: 0.25, value: Math.log2(state.tokens), shown: (power) => `N = ${whole(2 ** power)}`, onchange: (power) => update({ tokens: Math.round(2 ** power) }) }),
    button,
  );
  byId("measure-controls").onsubmit = (event) => event.preventDefault();
}

function name() {
  if (button) button.textContent = running ? "Stop" : here.dim === null ? "Start" : "Start again";
}

async function start() {
  running = new AbortController();
  here = { times: Object.fromEntries(FORMS.map((form) => [form, {}])), crossings: [], dim: state.dim };
  name();
  try {
    for await (const line of lines("/api/measure", { head_dim: state.dim, max_tokens: state.most }, running.signal)) {
      if (line.error) shared.say(line.error);
      if (line.form) here.times[line.form][line.tokens] = line.median_ms;
      if (line.crossings) here.crossings = line.crossings;
      draw();
    }
  } catch (error) {
    if (error.name !== "AbortError") shared.say(error.message);
  }
  running = null;
  name();
  draw();
}

const colors = () => ({ softmax: shared.attentions.softmax, direct: shared.attentions.taylor, linear: shared.attentions.performer_relu ?? shared.attentions.performer });

function draw() {
  if (byId("view-measure").hidden) return;
  drawChart(byId("chart-here"), { ...here, colors: colors(), tokens: state.tokens, title: `Time of one head over tokens on this machine, head dimension ${state.dim}` });
  byId("words-here").replaceChildren(...told(here.times, here.crossings, "float32, one head, on this machine"));
  if (h200) {
    const data = { times: h200.times[state.dim], crossings: h200.crossings[state.dim] };
    drawChart(byId("chart-h200"), { ...data, colors: colors(), tokens: state.tokens, title: `Time of one head over tokens on an H200, head dimension ${state.dim}` });
    byId("words-h200").replaceChildren(...told(data.times, data.crossings, `${h200.dtype}, one head of many, fused kernels: ${h200.source}`));
  }
  table();
}

/** What the curves say at the chosen number of tokens, and where they cross. */
function told(times, crossings, note) {
  const at = Object.fromEntries(FORMS.map((form) => [form, times[form] ? timeAt(times[form], state.tokens) : null]));
  const said = [];
  if (FORMS.every((form) => at[form] !== null)) {
    const rivals = ["softmax", "direct"].map((form) => (at[form] > at.linear
      ? `${(at[form] / at.linear).toPrecision(2)} times faster than ${form}`
      : `${(at.linear / at[form]).toPrecision(2)} times slower than ${form}`));
    said.push(`At ${whole(state.tokens)} tokens, linear attention takes ${duration(at.linear)} and is ${rivals.join(", ")}.`);
  } else if (Object.values(times).some((curve) => Object.keys(curve).length)) {
    said.push(`Not every form is measured at ${whole(state.tokens)} tokens.`);
  } else {
    said.push("Press Start: attention is timed with twice as many tokens each time, until a form takes too long.");
  }
  for (const { slower, tokens } of crossings) {
    said.push(tokens === null ? `It is not faster than ${slower} at the end of the curve.` : `It is faster than ${slower} from ${whole(tokens)} tokens on.`);
  }
  return [h("p", {}, said.join(" ")), h("p", { class: "help" }, note)];
}

/** The numbers of this machine, for those who do not see the chart. */
function table() {
  const counts = [...new Set(FORMS.flatMap((form) => Object.keys(here.times[form] ?? {}).map(Number)))].sort((a, b) => a - b);
  byId("measure-table").replaceChildren(...(counts.length ? [h("details", { class: "times" }, h("summary", {}, "The times as a table"),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "tokens"), FORMS.map((form) => h("th", { scope: "col" }, form)))),
      h("tbody", {}, counts.map((n) => h("tr", {}, h("th", { scope: "row" }, whole(n)), FORMS.map((form) => h("td", {}, here.times[form][n] === undefined ? "–" : duration(here.times[form][n])))))))))] : []));
}
