// Look: one picture through several attentions on the same weights.
import { get, latest, post } from "./api.js";
import { accent, bars, byId, eachFrame, h, percent, slider, toggle, weight } from "./dom.js";
import { drawMap, drawPicture, gradient, heat, lean, patchAt, patchByKey } from "./draw.js";
import { pickerParts, showSamples } from "./picker.js";
import { describe, patchName, shared, tokenOf } from "./shared.js";
import { state, update } from "./state.js";
import { showDiffer, showLens } from "./tables.js";

const CLASSES = 5;
let answer = null, image = null, hovered = null, canvases = [], parts = null;

const ask = latest((signal, params) => post("/api/explain", params, { signal }));
const names = () => state.attentions.split(",").filter((name) => name in shared.attentions);
const patchNow = () => (state.rollout ? null : hovered ?? state.patch);

/** Build what stays: the picture with its buttons. */
export function prepare() {
  const canvas = h("canvas", {
    class: "picture", tabindex: "0", role: "application", id: "picture",
    "aria-roledescription": "patch grid", "aria-describedby": "reading-of",
  });
  parts = { canvas, ...pickerParts("look") };
  byId("picker").append(canvas, parts.samples, parts.buttons, parts.hint);
  listen(canvas);
  addEventListener("resize", eachFrame(() => draw()));
}

/** Point, pin and use the arrow keys on a picture or map. */
function listen(canvas) {
  const point = eachFrame((patch) => { if (hovered !== patch) { hovered = patch; seen(); } });
  canvas.addEventListener("pointermove", (event) => point(patchAt(event, canvas, shared.model.grid)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const patch = patchAt(event, canvas, shared.model.grid);
    update({ patch: patch === state.patch ? null : patch });
  });
  canvas.addEventListener("keydown", (event) => {
    const patch = patchByKey(event.key, state.patch, shared.model.grid);
    if (patch === undefined) return;
    event.preventDefault();
    hovered = null;
    update({ patch });
  });
}

/** The patch changed: draw, and fetch its row if the server sent only some. */
function seen() {
  const patch = patchNow();
  if (answer && patch !== null && rowAt(answer.panels[0], patch) === undefined) fetchAnswer();
  else draw();
}

export async function show(changed) {
  if (changed.has("model") || changed.has("view")) controls();
  const needs = ["view", "model", "picture", "layer", "head", "temperature", "order", "attentions"];
  if (!answer || needs.some((name) => changed.has(name))) await fetchAnswer();
  else seen();
}

async function fetchAnswer() {
  const { model, picture } = shared;
  if (picture === null) {
    byId("reading-of").textContent = "Choose, drop, paste, photograph or draw a picture to begin.";
    showSamples(parts.samples, null);
    return;
  }
  const patch = patchNow();
  const params = {
    model: model.id, picture, attention: names(), order: state.order, layer: layerNow(),
    head: state.head, temperature: state.temperature,
    query: patch === null ? null : tokenOf(patch),
  };
  try {
    const first = answer === null && isUsual(params) ? await get("/api/example") : null;
    const found = first ?? await ask(params);
    if (!found) return;
    image = await shared.image(found.picture.id);
    answer = found;
    build();
  } catch (error) {
    shared.say(error.message);
  }
}

/** True if the view is the one that the server prepared. */
function isUsual(params) {
  return params.model === shared.models[0].id && state.picture === null && state.layer === null
    && state.head === null && state.temperature === 1 && state.order === "2"
    && state.attentions === "softmax,taylor,performer";
}

const layerNow = () => Math.min(state.layer ?? shared.model.depth - 1, shared.model.depth - 1);

function controls() {
  const { model, attentions } = shared;
  const orders = ["0", "1", "2", "exact"];
  const log = (value) => 10 ** value;
  const hidden = Object.keys(attentions).filter((own) => attentions[own].untrained && own !== model.attention);
  const choices = Object.keys(attentions).filter((own) => !hidden.includes(own));
  byId("look-controls").replaceChildren(
    slider({ id: "layer", label: "Layer", min: 1, max: model.depth, value: layerNow() + 1,
      shown: (n) => `${n} of ${model.depth}`, onchange: (n) => update({ layer: n - 1 }) }),
    slider({ id: "head", label: "Head", min: 0, max: model.heads, value: state.head === null ? 0 : state.head + 1,
      shown: (n) => (n ? `${n} of ${model.heads}` : "mean of all"), onchange: (n) => update({ head: n ? n - 1 : null }) }),
    slider({ id: "temperature", label: "Temperature", min: -1, max: 1, step: 0.05, value: Math.log10(state.temperature),
      shown: (value) => `${log(value).toFixed(2)} ×`, help: "The scores are divided by it: below 1 sharpens every map, above 1 flattens it.",
      onchange: (value) => update({ temperature: Number(log(value).toFixed(4)) }) }),
    slider({ id: "order", label: "Order of the series", min: 0, max: 3, value: orders.indexOf(state.order),
      shown: (n) => orders[n], help: "How many terms of exp Taylor attention keeps: 1, 1 + s, 1 + s + s²/2, or all.",
      onchange: (n) => update({ order: orders[n] }) }),
    toggle({ id: "rollout", label: "Rollout", value: state.rollout, help: "Multiply the attention of all layers: what the whole model reads.", onchange: (rollout) => update({ rollout }) }),
    toggle({ id: "difference", label: "Difference", value: state.difference, help: "Show the first map, and how the others differ from it.", onchange: (difference) => update({ difference }) }),
    h("fieldset", { class: "field chosen" }, h("legend", {}, "Side by side"), names().map((name, place) => h("select", {
      "aria-label": `Attention ${place + 1}`,
      onchange: (event) => update({ attentions: names().with(place, event.target.value).join(",") }),
    }, choices.map((own) => h("option", { value: own, selected: own === name }, own))))),
    ...hidden.map((own) => h("small", { class: "not-listed" }, `${own} is not listed: ${attentions[own].untrained}.`)),
  );
  byId("look-controls").onsubmit = (event) => event.preventDefault();
}

/** Build the panels of an answer. */
function build() {
  const { attentions } = shared;
  showSamples(parts.samples, answer.picture.id);
  document.querySelector("#view-look .lede").textContent = `${describe(shared.model)} The same weights, ${["", "one attention", "two attentions", "three attentions", "four attentions"][answer.panels.length]}: point at a patch to see where it looks.`;
  const order = classesShown();
  canvases = answer.panels.map((panel) => {
    const canvas = h("canvas", { class: "map", role: "img" });
    listen(canvas);
    return canvas;
  });
  byId("panels").replaceChildren(...answer.panels.map((panel, place) => {
    const own = attentions[panel.attention];
    const best = panel.classes[0];
    return h("article", { class: "panel", vars: accent(own), "data-attention": panel.attention },
      h("header", {}, h("h2", {}, panel.attention), h("p", { class: "formula" }, formula(panel, own))),
      canvases[place], h("p", { class: "caption" }),
      h("p", { class: "verdict" }, h("strong", {}, best.name), ` ${percent(best.probability)}`),
      bars(order.map((name) => panel.classes.find((one) => one.name === name)), best.name));
  }));
  showDiffer(byId("differ"), answer, { layer: layerNow(), head: state.head }, (layer, head) => {
    update({ layer, head });
    controls();
  });
  showLens(byId("lens"), answer, shared.model.class_names);
  draw();
}

/** The classes that the bars show: the most probable ones of any attention, in one order. */
function classesShown() {
  const highest = new Map();
  for (const { classes } of answer.panels) {
    for (const { name, probability } of classes) highest.set(name, Math.max(highest.get(name) ?? 0, probability));
  }
  return [...highest].sort((a, b) => b[1] - a[1]).slice(0, CLASSES).map(([name]) => name);
}

const SERIES = { 0: "1", 1: "1 + s", 2: "1 + s + s²/2", exact: "exp(s), all terms" };
const trained = (panel) => (panel.attention === shared.model.attention && (panel.order ?? "2") === "2" && panel.temperature === 1 ? ", as trained" : "");

/** The weight of a key, as a short formula. */
function formula(panel, own) {
  const order = own.has_order ? panel.order ?? "2" : null;
  const text = order === null ? own.weight.split(",")[0].replaceAll("phi", "φ").replace("φ(q).φ(k)", "φ(q)·φ(k)") : SERIES[order];
  return `weight ${text}${trained(panel)}`;
}

/** The row of a panel that is shown, over all tokens; undefined if the server did not send it. */
function rowAt(panel, patch) {
  if (state.rollout) return panel.rollout;
  if (patch === null) return panel.reading;
  return panel.weights[panel.queries.indexOf(tokenOf(patch))];
}

function draw() {
  if (!answer || !image || byId("view-look").hidden) return;
  const { model } = shared, { grid } = model, patch = patchNow();
  const rows = answer.panels.map((panel) => rowAt(panel, patch));
  if (rows.includes(undefined)) return;
  const patches = rows.map((row) => row.slice(model.prefix_tokens));
  const most = Math.max(...patches.map((own) => own.reduce((a, b) => Math.max(a, b), 0)));
  const gaps = patches.map((own) => own.map((value, i) => value - patches[0][i]));
  const widest = Math.max(1e-9, ...gaps.map((gap) => gap.reduce((a, b) => Math.max(a, Math.abs(b)), 0)));
  drawPicture(parts.canvas, image, grid, patch);
  parts.canvas.setAttribute("aria-label", `Picture of ${grid[0]} by ${grid[1]} patches. The arrow keys choose a patch, Escape lets go of it.`);
  answer.panels.forEach((panel, place) => {
    const isGap = state.difference && place > 0;
    const look = isGap ? { most: widest, colors: lean, patch } : { most, patch };
    drawMap(canvases[place], image, grid, isGap ? gaps[place] : patches[place], look);
    const text = caption(rows[place], patches[place], rows[0], place, panel);
    canvases[place].setAttribute("aria-label", `${panel.attention}: ${text}`);
    canvases[place].closest("article").querySelector(".caption").textContent = text;
  });
  legend(most, widest);
  byId("reading-of").textContent = subject(patch);
}

/** What a map says, in words. */
function caption(row, patches, first, place, panel) {
  const top = patches.indexOf(patches.reduce((a, b) => Math.max(a, b), -Infinity));
  const said = [`most at ${patchName(top, shared.model.grid)}: ${weight(patches[top])}`];
  if (shared.model.prefix_tokens) said.push(`class token ${weight(row[0])}`);
  if (place > 0) {
    const gap = row.reduce((sum, value, i) => sum + Math.abs(value - first[i]), 0) / 2;
    said.push(`differs by ${weight(gap)}`);
  }
  if (panel.negative > 0) said.push(`${percent(panel.negative)} of the weights are below zero (blue)`);
  return said.join(" · ");
}

function subject(patch) {
  if (state.rollout) return "Rollout: what the prediction reads, through all layers.";
  const where = `layer ${layerNow() + 1}, ${state.head === null ? "mean of the heads" : `head ${state.head + 1}`}`;
  if (patch !== null) return `Where the patch in ${patchName(patch, shared.model.grid)} looks (${where}).`;
  const reader = { token: "the class token reads", avg: "all patches look, on average", map: "the pooling reads" };
  return `Where ${reader[shared.model.pooling]} (${where}). Point at a patch to see its own view.`;
}

function legend(most, widest) {
  const { model } = shared;
  const tokens = model.grid[0] * model.grid[1] + model.prefix_tokens;
  const scales = [scale("weight of a patch, one scale for all maps", heat, 0, 1, ["0", weight(most)])];
  if (state.difference) scales.push(scale("less or more than the first map", lean, -1, 1, [`−${weight(widest)}`, `+${weight(widest)}`]));
  byId("legend").replaceChildren(...scales);
  byId("look-words").replaceChildren(h("h2", {}, "What to look for"), h("p", {}, words(tokens)));
}

function scale(text, colors, from, to, [low, high]) {
  const ramp = h("span", { class: "ramp" });
  ramp.style.backgroundImage = gradient(colors, from, to);
  return h("p", {}, h("span", {}, low), ramp, h("span", {}, high), h("span", { class: "help" }, text));
}

/** A hint for what is shown now. */
function words(tokens) {
  const even = `If all ${tokens} tokens counted the same, each would weigh ${weight(1 / tokens)}.`;
  if (state.difference) return `Orange patches get more than from the first attention, blue ones less. A map that is gray all over agrees with it. ${even}`;
  if (state.rollout) return `Rollout follows attention back through every layer to the pixels. It smooths what single heads do: compare its shape, not its details. ${even}`;
  if (state.order === "0") return `Order 0 keeps only the 1: every token weighs the same, whatever the picture. The prediction that remains comes without attention. ${even}`;
  if (state.order === "1") return "Order 1 is a straight line, and a straight line crosses zero: weights can become negative, and rows that almost cancel explode. That is why Taylor attention stops at order 2, which is always positive.";
  if (state.order === "exact") return `With all terms the series is exp, and Taylor attention is softmax: the two maps agree to the last digit shown. ${even}`;
  return `The polynomial grows more slowly than exp: where softmax picks one patch, Taylor attention keeps more of the others. Performer estimates exp with random features, so its map is noisy. Lower the temperature to drive them apart. ${even}`;
}
