"use strict";

const byId = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key === "text") made.textContent = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
};
const percent = (value) => `${(100 * value).toFixed(1)} %`;
const size = (share) => `${100 * Math.max(0, Math.min(1, share))}%`;
const worded = (name) => name.replaceAll("_", " ");

const KINDS = { bert: "BERT's own head", ensemble: "Ensemble", control: "Control" };

let models = [];
let current = null;

function showError(sentence) {
  const place = byId("error");
  place.hidden = !sentence;
  place.textContent = sentence || "";
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("The server cannot be reached.");
  }
  let body = null;
  try {
    body = await response.json();
  } catch {
    throw new Error(`The server answered with status ${response.status}, and nothing that can be read.`);
  }
  if (!response.ok) {
    const again = response.headers.get("retry-after");
    const hint = response.status === 429 && again ? ` (It asks to wait ${again} s.)` : "";
    throw new Error((body.error || `The server answered with status ${response.status}.`) + hint);
  }
  return body;
}

function chooseModel(name) {
  current = models.find((each) => each.name === name) || models[0];
  byId("model").value = current.name;
  history.replaceState(null, "", `#${encodeURIComponent(current.name)}`);
  byId("summary").textContent = current.summary;
  byId("result").hidden = true;
  showError("");
  const before = [...byId("inputs").querySelectorAll("textarea")].map((each) => each.value);
  byId("inputs").replaceChildren(
    ...current.inputs.map((input, place) => {
      const long = ["context", "passage"].includes(input);
      const id = `input-${place}`;
      const area = make("textarea", { id, name: input, rows: long ? "7" : "2", class: long ? "long" : "", required: "" });
      area.value = before[place] || "";
      return make("div", { class: "field" }, make("label", { for: id, text: worded(input) }), area);
    }),
  );
  byId("examples").replaceChildren(
    ...current.examples.map((example) => {
      const chip = make("button", { type: "button", text: example.title });
      chip.addEventListener("click", () => {
        fillIn(example.texts);
        submit();
      });
      return chip;
    }),
  );
  const about = [
    ["head", current.head],
    ["parameters", current.parameters.toLocaleString("en")],
    ["backbone", `${current.backbone}, fine-tuned for ${current.fraction} epochs`],
    ["score on dev", Object.entries(current.score).map(([key, value]) => `${worded(key)} ${value.toFixed(2)}`).join(", ")],
    ["reads", `${current.max_tokens} tokens a window`],
    ["runs on", current.runs_on],
    ["forward passes", String(current.passes)],
  ];
  byId("about").replaceChildren(...about.flatMap(([key, value]) => [make("dt", { text: key }), make("dd", { text: value })]));
}

function fillIn(texts) {
  byId("inputs").querySelectorAll("textarea").forEach((area, place) => { area.value = texts[place] || ""; });
}

function bars(rows) {
  return make("ul", { class: "bars" }, ...rows.map(([name, value]) => {
    const fill = make("div", { class: "fill" });
    fill.style.width = size(value);
    return make("li", {},
      make("span", { class: "name", text: worded(name) }),
      make("div", { class: "track", "aria-hidden": "true" }, fill),
      make("span", { class: "number", text: percent(value) }));
  }));
}

function secondBest(answer) {
  return answer.nbest.find((each) => each.text !== answer.answer);
}

function describe(answer, full) {
  if (current.answers === "span") {
    const parts = [make("p", { class: "said", text: answer.answer || "No answer" })];
    parts.push(bars([["no answer", answer.null_probability]]));
    if (answer.score !== null) parts.push(make("p", { class: "quiet", text: `score of the best piece ${answer.score.toFixed(2)}` }));
    const second = full ? secondBest(answer) : null;
    if (second) {
      parts.push(make("p", { class: "quiet second", text: `second best: ${second.text || "no answer"} (${percent(second.probability)})` }));
    }
    return parts;
  }
  if (current.answers === "class") {
    const ranked = Object.entries(answer.probabilities).sort((one, other) => other[1] - one[1]);
    return [make("p", { class: "said", text: worded(answer.label) }), bars(ranked)];
  }
  return [make("p", { class: "said", text: answer.score.toFixed(3) })];
}

function showContext(answer, text) {
  const place = byId("context");
  byId("context-block").hidden = current.answers !== "span";
  if (current.answers !== "span") return;
  // Offsets count characters; JavaScript counts UTF-16 units.
  const characters = [...text];
  const second = secondBest(answer);
  const marks = [];
  if (answer.answer) marks.push({ start: answer.start, end: answer.end, kind: "first" });
  if (second && second.text && !marks.some((each) => second.start < each.end && each.start < second.end)) {
    marks.push({ start: second.start, end: second.end, kind: "second" });
  }
  marks.sort((one, other) => one.start - other.start);
  const pieces = [];
  let at = 0;
  for (const mark of marks) {
    pieces.push(characters.slice(at, mark.start).join(""));
    pieces.push(make("mark", { class: mark.kind, text: characters.slice(mark.start, mark.end).join("") }));
    at = mark.end;
  }
  pieces.push(characters.slice(at).join(""));
  place.replaceChildren(...pieces);
  byId("legend").textContent = answer.answer ? "Marked: the answer; dotted: the second best." : "No answer is given; dotted: the best piece, were there one.";
}

const TEXTS = { apart: ", each text read by itself", both: ", the texts read together and each by itself" };

function showLayers(reads) {
  byId("layers").replaceChildren(...reads.map((read) => {
    const strongest = read.weights ? Math.max(...read.weights) : 1;
    const cells = [];
    for (let layer = 0; layer < read.of + (read.pooled ? 1 : 0); layer += 1) {
      const place = layer === read.of ? read.layers.length : read.layers.indexOf(layer);
      const fill = make("div", { class: "fill" });
      fill.style.height = size(place < 0 ? 0 : read.weights ? read.weights[place] / strongest : 1);
      const name = layer === read.of ? "pool" : layer === 0 ? "emb" : String(layer);
      cells.push(make("li", { "aria-hidden": "true" }, make("div", { class: "column" }, fill), make("span", { text: name })));
    }
    const weights = read.weights ? ", weighed " + read.weights.map((each) => each.toFixed(2)).join(", ") : "";
    const said = `${read.name}: layers ${read.layers.join(", ")} of 0 to ${read.of - 1}${read.pooled ? ", and the pooled state" : ""}${TEXTS[read.texts] || ""}${weights}`;
    return make("div", {}, make("p", { class: "quiet", text: said }), make("ul", { class: "layers" }, ...cells));
  }));
}

function showAnswer(found, texts, milliseconds) {
  const answer = found.answers[current.name][0];
  byId("head-title").textContent = `${KINDS[current.kind] || "Head"}: ${current.head}`;
  byId("head-answer").replaceChildren(...describe(answer, true));
  byId("bert-card").hidden = !answer.bert || current.kind === "bert";
  if (answer.bert) byId("bert-answer").replaceChildren(...describe(answer.bert, false));
  showContext(answer, texts[texts.length - 1]);
  showLayers(current.reads);
  const server = 1000 * found.seconds.total;
  byId("timing").textContent =
    `${milliseconds.toFixed(0)} ms here, ${server.toFixed(1)} ms in the server; ${found.tokens} tokens, ${found.passes} forward pass${found.passes === 1 ? "" : "es"}.`;
  byId("result").hidden = false;
}

async function submit() {
  const texts = [...byId("inputs").querySelectorAll("textarea")].map((each) => each.value);
  if (texts.some((text) => !text.trim())) {
    showError("Every field needs a text.");
    return;
  }
  const button = byId("submit");
  button.disabled = true;
  byId("result").setAttribute("aria-busy", "true");
  showError("");
  const began = performance.now();
  try {
    const item = Object.fromEntries(current.inputs.map((name, place) => [name, texts[place]]));
    const body = JSON.stringify({ items: [item], models: [current.name], nbest: 5, bert: true });
    const found = await ask("/v1/predict", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    showAnswer(found, texts, performance.now() - began);
  } catch (error) {
    byId("result").hidden = true;
    showError(error.message);
  } finally {
    button.disabled = false;
    byId("result").removeAttribute("aria-busy");
  }
}

async function begin() {
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  byId("form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); submit(); }
  });
  byId("model").addEventListener("change", (event) => chooseModel(event.target.value));
  try {
    const found = await ask("/v1/models");
    models = found.models;
    byId("note").textContent = found.note;
  } catch (error) {
    showError(error.message);
    return;
  }
  byId("model").replaceChildren(...models.map((each) => make("option", { value: each.name, text: each.name })));
  chooseModel(decodeURIComponent(location.hash.slice(1)));
}

begin();
