// What all views know: the models, the attentions, and the picture that is shown.
import { byId } from "./dom.js";
import { loadPicture } from "./draw.js";
import { state } from "./state.js";

export const shared = {
  models: [], attentions: {}, studies: [], maxBytes: 0,

  /** The model that is shown. */
  get model() {
    return this.models.find((model) => model.id === state.model) ?? this.models[0];
  },

  /** The picture that is shown; the first sample by default. */
  get picture() {
    return state.picture ?? this.model.samples[0]?.picture ?? null;
  },

  pictureAddress(picture, model = this.model) {
    return `/api/pictures/${picture}?model=${encodeURIComponent(model.id)}`;
  },

  /** The picture as a model receives it. */
  async image(picture, model = this.model) {
    const key = `${model.id} ${picture}`;
    if (!images.has(key)) images.set(key, loadPicture(this.pictureAddress(picture, model)));
    try {
      return await images.get(key);
    } catch (error) {
      images.delete(key);
      throw error;
    }
  },

  /** Show a message to the user, or take it away. */
  say(text) {
    const place = byId("message");
    place.textContent = text ?? "";
    place.hidden = !text;
    if (text) place.scrollIntoView({ block: "nearest" });
  },
};

const images = new Map();

/** The token of a patch. */
export const tokenOf = (patch, model = shared.model) => model.prefix_tokens + patch;

export function patchName(patch, [, columns]) {
  return `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;
}

export const sampleName = (sample) => `${sample.label} (${sample.name})`;

/** What the model and its data are, in one line. */
export function describe(model) {
  const right = model.accuracy === null ? "" : ` (${(100 * model.accuracy).toFixed(1)} % of its test pictures right)`;
  return `A ${model.name} trained with ${model.attention} on ${model.dataset}${right}.`;
}
