// Elements, numbers and small parts that every view uses.

/** Make an element: `h("p", {class: "now", onclick}, "text", child)`. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") setVariables(element, value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make an element of an SVG drawing. */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "vars") setVariables(element, value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Set CSS variables; an element with the colors of an attention is marked. */
function setVariables(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(name, value);
  if ("--accent-light" in values) element.dataset.accent = "";
}

export const byId = (id) => document.getElementById(id);
export const percent = (p) => `${(100 * p).toFixed(2)} %`;
export const weight = (w) => w.toFixed(4);
export const whole = (n) => Math.round(n).toLocaleString("en-US");

/** A time as a short text: 12.3 ns, 4.56 µs, 1.23 ms, 1.2 s. */
export function duration(ms) {
  const [factor, unit] = ms >= 1000 ? [0.001, "s"] : ms >= 0.1 ? [1, "ms"] : ms >= 0.0001 ? [1000, "µs"] : [1e6, "ns"];
  return `${Number((ms * factor).toPrecision(3))} ${unit}`;
}

/** A labeled slider. `shown` makes the text of a value; `help` says what it does. */
export function slider({ id, label, min, max, step = 1, value, shown = String, help, onchange }) {
  const output = h("output", { for: id }, shown(value));
  const input = h("input", {
    id, type: "range", min: String(min), max: String(max), step: String(step),
    "aria-describedby": help ? `${id}-help` : null, "aria-valuetext": shown(value),
  });
  input.value = String(value);
  input.addEventListener("input", () => {
    output.textContent = shown(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    onchange(Number(input.value));
  });
  return h("div", { class: "field" },
    h("div", { class: "field-head" }, h("label", { for: id }, label), output), input,
    help ? h("p", { class: "help", id: `${id}-help` }, help) : null);
}

/** A switch with a label and a line that says what it does. */
export function toggle({ id, label, value, help, onchange }) {
  const input = h("input", { id, type: "checkbox", role: "switch", "aria-describedby": `${id}-help` });
  input.checked = value;
  input.addEventListener("change", () => onchange(input.checked));
  return h("div", { class: "field switch" }, h("label", { for: id }, input, h("span", {}, label)),
    h("p", { class: "help", id: `${id}-help` }, help));
}

/** Colors of an attention as CSS variables; the style sheet takes the one of the theme. */
export function accent(attention) {
  return attention ? { "--accent-light": attention.light, "--accent-dark": attention.dark } : {};
}

/** Horizontal bars of probabilities, one a class. */
export function bars(classes, best) {
  return h("ol", { class: "bars" }, classes.map(({ name, probability }) =>
    h("li", { class: name === best ? "best" : "", vars: { "--p": String(probability) } },
      h("span", { class: "class" }, name), h("span", { class: "bar", "aria-hidden": "true" }),
      h("span", { class: "p" }, percent(probability)))));
}

/** Call a function at most once a frame, with the latest arguments. */
export function eachFrame(call) {
  let latest = null;
  return (...args) => {
    if (latest === null) requestAnimationFrame(() => { const now = latest; latest = null; call(...now); });
    latest = args;
  };
}
