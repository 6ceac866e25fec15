// Two tables of Look: total variation by layer and head, and the logit lens.
import { accent, h, percent } from "./dom.js";
import { shared } from "./shared.js";

const shownVariation = (value) => (value < 10 ? value.toFixed(2) : value.toFixed(0));

/** A table a swapped attention: a row for each layer, a cell for each head. */
export function showDiffer(place, { panels }, now, choose) {
  const [first, ...others] = panels;
  const many = others.some((panel) => panel.variation[0].length > 8);
  place.replaceChildren(...others.map((panel) => h("div", { class: `scroll${many ? " dense" : ""}`, vars: accent(shared.attentions[panel.attention]), "data-attention": panel.attention },
    h("table", { class: "differ" },
      h("caption", {}, h("b", {}, panel.attention), ` against ${first.attention}`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "layer"), panel.variation[0].map((_, head) => h("th", { scope: "col" }, `head ${head + 1}`)))),
      h("tbody", {}, panel.variation.map((row, layer) => h("tr", {}, h("th", { scope: "row" }, String(layer + 1)),
        row.map((value, head) => h("td", {}, h("button", {
          type: "button", vars: { "--share": String(Math.min(value, 1)) },
          "aria-pressed": String(layer === now.layer && head === now.head),
          "aria-label": `${panel.attention}, layer ${layer + 1}, head ${head + 1}: ${shownVariation(value)}`,
          onclick: () => choose(layer, head),
        }, shownVariation(value)))))))))));
}

/** The most probable class after each layer, by attention. */
export function showLens(place, { panels }, classNames) {
  const depth = panels[0].lens.length;
  const cell = (panel, layer) => {
    const row = panel.lens[layer];
    const best = row.indexOf(Math.max(...row));
    return h("td", { vars: { ...accent(shared.attentions[panel.attention]), "--p": String(row[best]) } },
      h("span", { class: "lens" }, h("b", {}, classNames[best]), ` ${percent(row[best])}`));
  };
  place.replaceChildren(h("div", { class: "scroll" }, h("table", { class: "lenses" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "after"), panels.map((panel) => h("th", { scope: "col" }, panel.attention)))),
    h("tbody", {}, [...Array(depth).keys()].map((layer) => h("tr", {},
      h("th", { scope: "row" }, layer ? `block ${layer}` : "embedding"), panels.map((panel) => cell(panel, layer))))))));
}
