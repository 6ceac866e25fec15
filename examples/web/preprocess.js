// From pixels to the input of the model, with the numbers of Python.
//
// `resize` is Pillow's bilinear filter: a triangle as wide as an output pixel, horizontally and then
// vertically, with weights of 22 bits and 8-bit rows between the two passes.

const BITS = 22;

/** Weights of the input pixels of every output pixel. */
function weightsOf(start, stop, inSize, outSize) {
  const scale = (stop - start) / outSize;
  const support = Math.max(scale, 1);
  const rows = [];
  for (let out = 0; out < outSize; out++) {
    const center = start + (out + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const last = Math.min(inSize, Math.trunc(center + support + 0.5));
    const weights = [];
    for (let x = first; x < last; x++) {
      weights.push(Math.max(0, 1 - Math.abs((x - center + 0.5) / support)));
    }
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const fixed = weights.map((weight) => Math.trunc(0.5 + (weight / total) * 2 ** BITS));
    rows.push({ first, fixed });
  }
  return rows;
}

/** One pass over `lines` lines of pixels with `channels` values each. */
function pass(source, rows, lines, stepIn, lineIn, stepOut, lineOut, channels) {
  const out = new Uint8ClampedArray(rows.length * lines * channels);
  for (let line = 0; line < lines; line++) {
    rows.forEach(({ first, fixed }, place) => {
      for (let channel = 0; channel < channels; channel++) {
        let sum = 2 ** (BITS - 1);
        fixed.forEach((weight, i) => {
          sum += weight * source[line * lineIn + (first + i) * stepIn + channel];
        });
        out[line * lineOut + place * stepOut + channel] = Math.floor(sum / 2 ** BITS);
      }
    });
  }
  return out;
}

/** The largest centered square of RGB pixels, resized to side x side. */
export function resizeSquare(pixels, width, height, side) {
  const shorter = Math.min(width, height);
  const [left, top] = [(width - shorter) / 2, (height - shorter) / 2];
  let [source, columns] = [pixels, width];
  if (width !== side || left > 0) {
    const across = weightsOf(left, left + shorter, width, side);
    source = pass(source, across, height, 3, 3 * width, 3, 3 * side, 3);
    columns = side;
  }
  if (height !== side || top > 0) {
    const down = weightsOf(top, top + shorter, height, side);
    source = pass(source, down, columns, 3 * columns, 3, 3 * columns, 3, 3);
  }
  return source;
}

/** The input (1, C, H, W) of a model from square RGB pixels. */
export function normalize(square, side, input) {
  const [height, width] = input.image_size;
  const [row, column] = [Math.floor((side - height) / 2), Math.floor((side - width) / 2)];
  const { channels, mean, std } = input;
  const luma = [0.299, 0.587, 0.114];
  const values = new Float32Array(channels * height * width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = 3 * ((y + row) * side + x + column);
      const rgb = [square[at] / 255, square[at + 1] / 255, square[at + 2] / 255];
      const own = channels === 1 ? [rgb.reduce((sum, v, i) => sum + v * luma[i], 0)] : rgb;
      own.forEach((value, channel) => {
        values[channel * height * width + y * width + x] = (value - mean[channel]) / std[channel];
      });
    }
  }
  return values;
}

/** Upright RGB pixels of an image file; transparent pixels become white. */
export async function readPixels(file) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, bitmap.width, bitmap.height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
  const pixels = new Uint8ClampedArray(3 * bitmap.width * bitmap.height);
  for (let i = 0; i < bitmap.width * bitmap.height; i++) {
    pixels.set(data.subarray(4 * i, 4 * i + 3), 3 * i);
  }
  return { pixels, width: bitmap.width, height: bitmap.height };
}
