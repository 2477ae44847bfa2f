"use strict";

const byId = (id) => document.getElementById(id);
const createElement = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else if (key === "text") element.textContent = value;
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
};
const formatPercent = (value) => `${(100 * value).toFixed(1)} %`;
const cssPercent = (share) => `${100 * Math.max(0, Math.min(1, share))}%`;
const formatName = (name) => name.replaceAll("_", " ");

const SHOWN_BARS = 5;
const KINDS = { bert: "Fine-tuned encoder", ensemble: "Ensemble", control: "Control" };

let models = [];
let current = null;

function showError(message) {
  const box = byId("error");
  box.hidden = !message;
  box.textContent = message || "";
}

async function fetchJson(path, options) {
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
    throw new Error(`The server returned status ${response.status} without a readable body.`);
  }
  if (!response.ok) {
    throw new Error(body.error || `The server returned status ${response.status}.`);
  }
  return body;
}

function chooseModel(name) {
  current = models.find((model) => model.name === name) || models[0];
  byId("model").value = current.name;
  history.replaceState(null, "", `#${encodeURIComponent(current.name)}`);
  byId("summary").textContent = current.summary.replace(/, from [^,]*$/, ""); // the name of the training file tells visitors nothing
  byId("result").hidden = true;
  showError("");
  const previousTexts = readTexts();
  byId("inputs").replaceChildren(
    ...current.inputs.map((input, index) => {
      const isLong = ["context", "passage"].includes(input);
      const id = `input-${index}`;
      const area = createElement("textarea", { id, name: input, rows: isLong ? "7" : "2", class: isLong ? "long" : "", required: "" });
      area.value = previousTexts[index] || "";
      return createElement("div", { class: "field" }, createElement("label", { for: id, text: formatName(input) }), area);
    }),
  );
  byId("examples").replaceChildren(
    ...current.examples.map((example) => {
      const button = createElement("button", { type: "button", text: example.title });
      button.addEventListener("click", () => {
        fillIn(example.texts);
        submit();
      });
      return button;
    }),
  );
  const about = [
    ["head", current.head],
    ["parameters", current.parameters.toLocaleString("en")],
    ["encoder", `${current.encoder}, fine-tuned for ${current.fraction} epochs`],
    ["scores on dev", Object.entries(current.score).map(([key, value]) => `${formatName(key)} ${value.toFixed(2)}`).join(", ")],
    ["maximum length", `${current.max_tokens} tokens per window`],
    ["runs on", current.runs_on],
    ["forward passes", String(current.passes)],
  ];
  byId("about").replaceChildren(...about.flatMap(([key, value]) => [createElement("dt", { text: key }), createElement("dd", { text: value })]));
}

function readTexts() {
  return [...byId("inputs").querySelectorAll("textarea")].map((area) => area.value);
}

function fillIn(texts) {
  byId("inputs").querySelectorAll("textarea").forEach((area, index) => { area.value = texts[index] || ""; });
}

// Names of classes are shown as they are. Of many, the first five; a button shows the rest.
function createBars(rows) {
  const list = createElement("ul", { class: "bars" }, ...rows.map(([name, value]) => {
    const fill = createElement("div", { class: "fill" });
    fill.style.width = cssPercent(value);
    return createElement("li", {},
      createElement("span", { class: "name", text: name }),
      createElement("div", { class: "track", "aria-hidden": "true" }, fill),
      createElement("span", { class: "number", text: formatPercent(value) }));
  }));
  const rest = [...list.children].slice(SHOWN_BARS);
  if (rest.length < 2) return list;
  rest.forEach((row) => { row.hidden = true; });
  const button = createElement("button", { type: "button", class: "more", text: `Show all ${rows.length}` });
  button.addEventListener("click", () => {
    rest.forEach((row) => { row.hidden = false; });
    button.remove();
  });
  return createElement("div", {}, list, button);
}

function secondBest(answer) {
  return answer.nbest.find((candidate) => candidate.text !== answer.answer);
}

function createAnswer(answer, full) {
  if (current.answers === "span") {
    const elements = [createElement("p", { class: "prediction", text: answer.answer || "No answer" })];
    elements.push(createBars([["no answer", answer.null_probability]]));
    if (answer.score !== null) elements.push(createElement("p", { class: "quiet", text: `score of the best span: ${answer.score.toFixed(2)}` }));
    const second = full ? secondBest(answer) : null;
    if (second) {
      elements.push(createElement("p", { class: "quiet second", text: `second best: ${second.text || "no answer"} (${formatPercent(second.probability)})` }));
    }
    return elements;
  }
  if (current.answers === "entities") {
    const found = answer.entities;
    if (!found.length) return [createElement("p", { class: "prediction", text: "No entities" })];
    return [createBars(found.map((entity) => [`${entity.text} (${entity.type})`, entity.score]))];
  }
  if (current.answers === "class") {
    const ranked = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
    return [createElement("p", { class: "prediction", text: answer.label }), createBars(ranked)];
  }
  if (current.answers === "labels") {
    const ranked = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
    const chosen = answer.labels.join(", ") || "No label";
    const rows = ranked.map(([name, value]) => [answer.labels.includes(name) ? `✓ ${name}` : name, value]);
    return [createElement("p", { class: "prediction", text: chosen }), createBars(rows)];
  }
  return [createElement("p", { class: "prediction", text: answer.score.toFixed(3) })];
}

function showContext(answer, text) {
  byId("context-block").hidden = !["span", "entities"].includes(current.answers);
  byId("context-title").textContent = current.answers === "entities" ? "Entities in the text" : "Answer in the context";
  if (current.answers === "entities") showEntities(answer.entities, text);
  if (current.answers !== "span") return;
  // Offsets count characters; JavaScript counts UTF-16 units.
  const characters = [...text];
  const second = secondBest(answer);
  const marks = [];
  if (answer.answer) marks.push({ start: answer.start, end: answer.end, kind: "first" });
  if (second && second.text && !marks.some((mark) => second.start < mark.end && mark.start < second.end)) {
    marks.push({ start: second.start, end: second.end, kind: "second" });
  }
  marks.sort((a, b) => a.start - b.start);
  highlight(characters, marks);
  byId("legend").textContent = answer.answer ? "Highlighted: the answer. Dotted: the second best." : "The model finds no answer. Dotted: the best span.";
}

function highlight(characters, marks) {
  const pieces = [];
  let position = 0;
  for (const mark of marks) {
    pieces.push(characters.slice(position, mark.start).join(""));
    const element = createElement("mark", { class: mark.kind, text: characters.slice(mark.start, mark.end).join("") });
    if (mark.type) element.append(createElement("small", { class: "type", text: ` ${mark.type}` }));
    pieces.push(element);
    position = mark.end;
  }
  pieces.push(characters.slice(position).join(""));
  byId("context").replaceChildren(...pieces);
}

// A long context is a box of its own, scrolled to the first highlight. The page itself stays where it is.
function scrollToMark() {
  const box = byId("context");
  const mark = box.querySelector("mark.first") || box.querySelector("mark");
  box.scrollTop = mark ? mark.offsetTop - box.offsetTop - box.clientHeight / 3 : 0;
}

function showEntities(entities, text) {
  const types = [...new Set(entities.map((entity) => entity.type))].sort();
  highlight([...text], entities.map((entity) => ({ ...entity, kind: types.indexOf(entity.type) % 2 ? "second entity" : "first entity" })));
  byId("legend").textContent = entities.length ? "Highlighted: the entities with their types." : "The model finds no entities.";
}

function showLayers(members) {
  byId("layers").replaceChildren(...members.map((member) => {
    const { layers, weights, pooler_output: pooler } = member;
    const maximum = weights ? Math.max(...weights) : 1;
    const cells = [];
    for (let layer = 0; layer < member.of + (pooler ? 1 : 0); layer += 1) {
      const index = layer === member.of ? layers.length : layers.indexOf(layer);
      const fill = createElement("div", { class: "fill" });
      fill.style.height = cssPercent(index < 0 ? 0 : weights ? weights[index] / maximum : 1);
      const name = layer === member.of ? "pool" : layer === 0 ? "emb" : String(layer);
      cells.push(createElement("li", { "aria-hidden": "true" }, createElement("div", { class: "column" }, fill), createElement("span", { text: name })));
    }
    const used = `${member.name}: layers ${layers.join(", ")} of 0 to ${member.of - 1}${pooler ? " and the pooler output" : ""}`;
    const learned = weights ? `; weights ${weights.map((weight) => weight.toFixed(2)).join(", ")}` : "";
    return createElement("div", {}, createElement("p", { class: "quiet", text: used + learned }), createElement("ul", { class: "layers" }, ...cells));
  }));
}

function showResult(result, texts, milliseconds) {
  const answer = result.answers[current.name][0];
  byId("head-title").textContent = `${KINDS[current.kind] || "Head"}: ${current.head}`;
  byId("head-answer").replaceChildren(...createAnswer(answer, true));
  byId("bert-card").hidden = !answer.bert || current.kind === "bert";
  if (answer.bert) byId("bert-answer").replaceChildren(...createAnswer(answer.bert, false));
  showContext(answer, texts[texts.length - 1]);
  showLayers(current.reads);
  const serverMilliseconds = 1000 * result.seconds.total;
  byId("timing").textContent =
    `${milliseconds.toFixed(0)} ms in total, ${serverMilliseconds.toFixed(1)} ms on the server; ${result.tokens} tokens, ${result.passes} forward pass${result.passes === 1 ? "" : "es"}.`;
  byId("result").hidden = false;
  scrollToMark();
}

async function submit() {
  const texts = readTexts();
  if (texts.some((text) => !text.trim())) {
    showError("Enter a text in every field.");
    return;
  }
  const button = byId("submit");
  button.disabled = true;
  byId("result").setAttribute("aria-busy", "true");
  showError("");
  const started = performance.now();
  try {
    const item = Object.fromEntries(current.inputs.map((name, index) => [name, texts[index]]));
    const body = JSON.stringify({ items: [item], models: [current.name], nbest: 5, bert: true });
    const result = await fetchJson("/v1/predict", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    showResult(result, texts, performance.now() - started);
  } catch (error) {
    byId("result").hidden = true;
    showError(error.message);
  } finally {
    button.disabled = false;
    byId("result").removeAttribute("aria-busy");
  }
}

async function start() {
  byId("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  byId("form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); submit(); }
  });
  byId("model").addEventListener("change", (event) => chooseModel(event.target.value));
  try {
    models = (await fetchJson("/v1/models")).models;
  } catch (error) {
    showError(error.message);
    return;
  }
  byId("model").replaceChildren(...models.map((model) => createElement("option", { value: model.name, text: model.name })));
  chooseModel(decodeURIComponent(location.hash.slice(1)));
}

start();
