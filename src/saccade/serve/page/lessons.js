// The words and equations of Learn, by the id of the step. Equations are MathML.

const mi = (text) => `<mi>${text}</mi>`;
const mo = (text) => `<mo>${text}</mo>`;
const mn = (text) => `<mn>${text}</mn>`;
const row = (...parts) => `<mrow>${parts.join("")}</mrow>`;
const sub = (a, b) => `<msub>${a}${b}</msub>`;
const sup = (a, b) => `<msup>${a}${b}</msup>`;
const frac = (a, b) => `<mfrac>${a}${b}</mfrac>`;
const root = (a) => `<msqrt>${a}</msqrt>`;
const word = (text) => `<mtext>${text}</mtext>`;
const math = (...parts) => `<math display="block">${row(...parts)}</math>`;
const X = mi("X"), E = mi("E"), W = mi("W"), b = mi("b");

const SCORE = frac(row(sub(mi("q"), mi("i")), mo("·"), sub(mi("k"), mi("j"))), root(mi("D")));
const UNIT = row(mi("τ"), frac(row(sub(mi("q"), mi("i")), mo("·"), sub(mi("k"), mi("j"))), row(mo("|"), sub(mi("q"), mi("i")), mo("|"), mo("|"), sub(mi("k"), mi("j")), mo("|"))));
const SQUARE = frac(sup(sub(mi("s"), row(mi("i"), mi("j"))), mn("2")), mn("2"));
const S = sub(mi("s"), row(mi("i"), mi("j")));

/** The unnormalized weight of an attention, and its scores. */
function weightOf(attention) {
  if (attention === "softmax") return row(mi("exp"), mo("("), SCORE, mo(")"));
  if (attention === "taylor") return row(mn("1"), mo("+"), S, mo("+"), SQUARE, mo(","), S, mo("="), SCORE);
  if (attention === "taylorshift") return row(mn("1"), mo("+"), S, mo("+"), SQUARE, mo(","), S, mo("="), UNIT);
  return row(mi("φ"), mo("("), sub(mi("q"), mi("i")), mo(")"), mo("·"), mi("φ"), mo("("), sub(mi("k"), mi("j")), mo(")"));
}

const WORDS = {
  softmax: "Softmax takes the exponential of each score, so that the largest scores get most of the weight.",
  taylor: "Taylor attention replaces the exponential by the first three terms of its series. They are always positive, and they can be summed over the keys first: that is the linear-time form.",
  taylorshift: "TaylorShift divides queries and keys by their length, so that all scores lie between −τ and τ, where the first three terms of the series are close to the exponential.",
};

const POOLS = {
  token: ["Only the row of the class token goes on. It has gathered information from the patches in every block.", row(mi("f"), mo("="), word("norm"), mo("("), sub(X, word("class")), mo(")"))],
  avg: ["The rows of all patches are averaged.", row(mi("f"), mo("="), frac(mn("1"), mi("N")), mo("∑"), sub(X, mi("i")))],
  map: ["One learned query attends to all patches.", row(mi("f"), mo("="), mo("∑"), sub(mi("a"), mi("i")), sub(X, mi("i")))],
};

const STEMS = {
  patch: "The picture is cut into patches. Each patch, all its pixels in one row, is multiplied by one matrix: that makes it a token.",
  patch_linear: "The picture is cut into patches. Each patch, all its pixels in one row, is multiplied by one matrix: that makes it a token.",
};

export const LESSONS = {
  pixels: {
    title: () => "Pixels",
    text: (m) => [`The picture is cropped to a square, resized to ${m.image_size[0]} × ${m.image_size[1]} pixels${m.channels === 1 ? " of gray" : ""}, and shifted so that the training data have mean 0 and deviation 1.`],
    equation: () => math(mi("x"), mo("="), frac(row(word("pixel"), mo("−"), mi("μ")), mi("σ"))),
  },
  patches: {
    title: () => "Patches become tokens",
    text: (m) => [STEMS[m.stem] ?? "Small convolutions turn the neighborhood of each patch into a token.", `Here: ${m.grid[0] * m.grid[1]} tokens of width ${m.width}, a row each. Rows that look alike belong to patches that look alike.`],
    equation: (m) => (STEMS[m.stem] ? math(sub(E, mi("i")), mo("="), sub(word("patch"), mi("i")), mo("·"), W, mo("+"), b) : math(E, mo("="), word("conv"), mo("("), mi("x"), mo(")"))),
  },
  class_token: {
    title: () => "A class token joins",
    text: () => ["One more row is put in front. It is learned, and the same for every picture. It has no pixels of its own: all that it holds in the end has come through attention."],
    equation: () => math(mi("T"), mo("="), mo("["), mi("c"), mo(";"), sub(E, mn("1")), mo(";"), mo("…"), mo(";"), sub(E, mi("N")), mo("]")),
  },
  positions: {
    title: () => "Positions are added",
    text: () => ["Attention does not depend on the order of the tokens: a shuffled picture would give the same result. A table with one row for each place is added, so that equal patches at different places differ."],
    equation: () => math(X, mo("="), mi("T"), mo("+"), mi("P")),
  },
  norm: {
    title: (m) => `Block ${m.layer} opens: normalize`,
    text: () => ["Each row gets mean 0 and deviation 1, then a learned scale and shift. The stream itself stays as it is: the block works on a normalized copy, and adds to the original."],
    equation: () => math(word("norm"), mo("("), X, mo(")"), mo("="), frac(row(X, mo("−"), mi("μ")), mi("σ")), mo("⊙"), mi("γ"), mo("+"), mi("β")),
  },
  qkv: {
    title: (m) => `Query, key, value (head ${m.head})`,
    text: (m) => [`Each token is multiplied by three learned matrices: the query says what it searches for, the key what it is found by, and the value what it passes on. A head has ${m.head_dim} columns of each.`],
    equation: () => math(mi("Q"), mo("="), X, sub(W, mi("Q")), mo(","), mi("K"), mo("="), X, sub(W, mi("K")), mo(","), mi("V"), mo("="), X, sub(W, mi("V"))),
  },
  weights: {
    title: (m) => `Attention weights (head ${m.head})`,
    text: (m) => [WORDS[m.attention] ?? "A linear attention compares features φ of query and key, which need no exponential of every pair.", `Each row is the weights of one token for all ${m.tokens} tokens and sums to 1. Bright columns are tokens with a large weight in many rows.`],
    equation: (m) => math(sub(mi("A"), row(mi("i"), mi("j"))), mo("∝"), weightOf(m.attention)),
  },
  mix: {
    title: () => "Values are mixed",
    text: () => ["Each token receives the mean of all values, weighted by its row. The heads are put side by side and mixed by one more matrix. In linear attention the weights above are never formed: the sum is taken in another order, with the same result."],
    equation: () => math(mi("Z"), mo("="), word("concat"), mo("("), sub(mi("A"), mn("1")), sub(mi("V"), mn("1")), mo(","), mo("…"), mo(")"), sub(W, mi("O"))),
  },
  mlp: {
    title: () => "Each token by itself: the MLP",
    text: () => ["After a second norm, every row goes through the same two layers with GELU between them. No token affects another one here."],
    equation: () => math(word("MLP"), mo("("), X, mo(")"), mo("="), word("GELU"), mo("("), X, sub(W, mn("1")), mo(")"), sub(W, mn("2"))),
  },
  residual: {
    title: (m) => `Block ${m.layer} closes: add`,
    text: (m) => [`What attention and MLP made is added to the stream. This happens ${m.depth} times; open another block to see how rows change on the way.`],
    equation: () => math(X, mo("←"), X, mo("+"), mi("Z"), mo(","), X, mo("←"), X, mo("+"), word("MLP"), mo("("), word("norm"), mo("("), X, mo(")"), mo(")")),
  },
  pool: {
    title: () => "One row for the picture",
    text: (m) => [POOLS[m.pooling][0]],
    equation: (m) => math(POOLS[m.pooling][1]),
  },
  head: {
    title: () => "The prediction",
    text: (m) => [`One last matrix gives a number for each of the ${m.class_names.length} classes. Softmax turns them into probabilities: the larger the number, the more probable the class.`],
    equation: () => math(mi("p"), mo("="), word("softmax"), mo("("), mi("f"), sub(W, word("head")), mo("+"), b, mo(")")),
  },
};
