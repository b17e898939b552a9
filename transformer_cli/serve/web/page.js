// The page of `tfm serve`. Texts become text nodes and nothing else; only this server is asked for anything.

const ui = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const TITLE_OF_AUTO = "Detect language";
const RIGHT_TO_LEFT = /^(ar|arc|ckb|dv|fa|he|iw|ku|ps|sd|ug|ur|yi)(-|$)|-(arab|hebr)\b/i;
const MOST_ATTEMPTS = 5; // to get an answer of a busy server
const MOST_KEPT = 50; // translations in the history
const LONGEST_KEPT = 10_000; // characters
const SETTLED = 1_500; // milliseconds without a change, after which a translation goes into the history

let languages = []; // as GET /languages gives them
let settings = {}; // as GET /frontend/settings gives them
let ready = null; // the promise of both; null: not asked for yet, or the server was gone since
let running = null; // what cancels the request under way
let timer = 0; // of the next request
let settling = 0; // timer of the history
let attempts = 0; // that failed, one after the other
let took = 0; // milliseconds that the last translation needed
let shown = null; // what the translation is of: {text, from, to, lines}
let current = null; // the word that is pointed at
let key = ""; // of the API
const segmenters = new Map(); // by language; making one takes a while

// --- what the browser keeps ----------------------------------------------------------------------------------------

/** Return what a job gives; undefined where the browser has no room, or does not let pages keep anything. */
function allowed(job) {
  try {
    return job();
  } catch {
    return undefined;
  }
}

function remembered() {
  return { history: [], ...allowed(() => JSON.parse(localStorage.getItem("tfm"))) };
}

function remember(changes) {
  allowed(() => localStorage.setItem("tfm", JSON.stringify({ ...remembered(), ...changes })));
}

// --- asking the server ---------------------------------------------------------------------------------------------

class Problem extends Error {
  constructor(message, status, wait) {
    super(message);
    this.status = status; // 0: no answer
    this.wait = wait; // seconds after which the server wants to be asked again
  }

  /** Return whether it may pass by itself; a server that is busy, or too slow for a text, is not asked for ever. */
  passes() {
    return [0, 502, 504].includes(this.status) || ([429, 503].includes(this.status) && attempts < MOST_ATTEMPTS);
  }
}

async function ask(path, content, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  const form = content instanceof FormData;
  if (content && !form) headers["Content-Type"] = "application/json";
  let response;
  let answer;
  try {
    const body = content && !form ? JSON.stringify(content) : content;
    response = await fetch(path, { method: content ? "POST" : "GET", headers, body, signal });
    const json = response.headers.get("Content-Type")?.startsWith("application/json");
    answer = json ? await response.json() : await response.blob();
  } catch (error) {
    throw signal?.aborted ? error : new Problem("The server does not answer", 0, 0);
  }
  if (response.ok) return answer;
  const message = answer.error ?? `The server answers with an error (${response.status})`;
  throw new Problem(message, response.status, Number(response.headers.get("Retry-After")));
}

async function load() {
  [languages, settings] = await Promise.all([ask("languages"), ask("frontend/settings")]);
  const { from, to, glossary } = remembered();
  const sources = languages.filter((one) => one.targets.length);
  fill(ui.from, [["auto", TITLE_OF_AUTO], ...sources.map((one) => [one.code, one.name])]);
  choose(ui.from, from) || choose(ui.from, settings.language.source.code);
  fillTargets();
  choose(ui.to, to) || choose(ui.to, settings.language.target.code);
  fill(ui.glossary, [["", "No glossary"], ...settings.glossaries.map((name) => [name, `Glossary: ${name}`])]);
  choose(ui.glossary, glossary);
  ui.glossary.hidden = !settings.glossaries.length;
  ui.keyForm.hidden = !settings.keyRequired;
  ui.suggest.hidden = !settings.suggestions;
  ui.upload.accept = settings.supportedFilesFormat.join();
  languagesChanged();
}

// --- languages -----------------------------------------------------------------------------------------------------

function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, name]) => new Option(name, value)));
  choose(select, before);
}

function choose(select, value) {
  const found = [...select.options].some((option) => option.value === value);
  if (found) select.value = value;
  return found;
}

function nameOf(code) {
  return languages.find((one) => one.code === code)?.name ?? code;
}

function fillTargets() {
  const codes = languages.filter((one) => ["auto", one.code].includes(ui.from.value)).flatMap((one) => one.targets);
  fill(ui.to, [...new Set(codes)].map((code) => [code, nameOf(code)]));
}

function sourceLanguage() {
  return ui.from.value === "auto" ? shown?.from : ui.from.value;
}

function direct(element, code) {
  element.dir = RIGHT_TO_LEFT.test(code) ? "rtl" : "auto";
  element.lang = code === "auto" ? "" : code;
}

function languagesChanged() {
  direct(ui.source, ui.from.value);
  direct(ui.mirror, ui.from.value);
  direct(ui.translation, ui.to.value);
  ui.swap.disabled = !languages.find((one) => one.code === ui.to.value)?.targets.includes(sourceLanguage());
}

function named(detected) {
  const sure = detected?.confidence > 0;
  ui.from.options[0].text = sure ? `${TITLE_OF_AUTO}: ${nameOf(detected.language)}` : TITLE_OF_AUTO;
}

function swap() {
  const [from, to] = [ui.to.value, sourceLanguage()];
  if (shown) ui.source.value = translationText();
  ui.from.value = from;
  fillTargets();
  ui.to.value = to;
  changed();
}

function changed() {
  remember({ from: ui.from.value, to: ui.to.value, glossary: ui.glossary.value });
  typed();
  languagesChanged();
  translate();
}

// --- translating ---------------------------------------------------------------------------------------------------

function typed() {
  clearTimeout(timer);
  clearTimeout(settling);
  running?.abort();
  attempts = 0;
  timer = setTimeout(translate, Math.max(settings.frontendTimeout ?? 0, Math.min(took, 2_000)));
  ui.clear.hidden = !ui.source.value;
  point(null);
}

async function translate() {
  clearTimeout(timer);
  running?.abort();
  const { signal } = (running = new AbortController());
  const begun = performance.now();
  try {
    await (ready ??= load());
    if (signal.aborted) return;
    const asked = { q: ui.source.value, source: ui.from.value, target: ui.to.value, details: true };
    if (ui.alternatives.open) asked.alternatives = 3;
    if (ui.glossary.value) asked.glossary = ui.glossary.value;
    ui.translation.ariaBusy = "true";
    ui.translation.classList.add("stale");
    const answer = asked.q.trim() ? await ask("translate", asked, signal) : null;
    attempts = 0;
    took = performance.now() - begun;
    say("");
    named(answer?.detectedLanguage);
    show(asked, answer);
  } catch (error) {
    if (!signal.aborted) failed(error);
  }
}

function failed(problem) {
  if (!(problem instanceof Problem)) throw problem;
  ui.translation.ariaBusy = "false";
  if (problem.status === 0 || !languages.length) ready = null; // it may come back with other models
  if (problem.status === 403) ui.keyForm.hidden = false;
  if (!problem.passes()) return say(problem.message, true);
  const seconds = Math.max(problem.wait || 0, Math.min(30, 2 ** attempts));
  attempts += 1;
  timer = setTimeout(translate, 1_000 * seconds);
  return say(`${problem.message}; trying again …`, true);
}

function say(text, problem = false) {
  if (ui.status.textContent !== text) ui.status.textContent = text;
  ui.status.classList.toggle("problem", problem);
}

// --- the translation -----------------------------------------------------------------------------------------------

/** Return the lines of a text with what the server says of each: `choices` are its translations, the best first. */
function linesOf(text, answer) {
  const rows = [...(answer.details ?? [])]; // of the lines that have words
  const translations = answer.translatedText.split("\n");
  let start = 0;
  return text.split("\n").map((source, number) => {
    const line = { source, start, chosen: 0, choices: [{ translation: translations[number] ?? "" }] };
    start += source.length + 1;
    if (rows[0]?.source !== source) return line;
    const row = rows.shift();
    const found = row.n_best ?? [row];
    const isFirst = (one, place) => found.findIndex(({ translation }) => translation === one.translation) === place;
    return { ...line, sourceTokens: row.source_tokens, choices: found.filter(isFirst) };
  });
}

function show(asked, answer) {
  const from = asked.source === "auto" ? answer?.detectedLanguage?.language : asked.source;
  shown = answer && { text: asked.q, from, to: asked.target, lines: linesOf(asked.q, answer) };
  if (from === asked.target) say(`The text is in ${nameOf(from)} already`);
  render();
  settling = setTimeout(keep, SETTLED);
}

function render() {
  const lines = document.createDocumentFragment();
  for (const line of shown?.lines ?? []) lines.append(rendered(line));
  point(null);
  ui.translation.replaceChildren(lines);
  ui.translation.classList.remove("stale");
  ui.translation.ariaBusy = "false";
  ui.translation.tabIndex = shown ? 0 : -1;
  ui.copy.disabled = ui.suggest.disabled = !shown;
  showConfidence();
  showAlternatives(shown?.lines.find((line) => line.choices.length > 1) ?? shown?.lines[0]);
  languagesChanged();
}

/** Return an element with a line's translation, each of its words a span that knows its line and its place. */
function rendered(line) {
  const { translation, confidence, alignment } = line.choices[line.chosen];
  const block = document.createElement("div");
  direct(block, shown.to);
  if (typeof confidence === "number") {
    block.dataset.confidence = level(confidence);
    block.title = `confidence ${confidence.toFixed(2)}`;
  }
  let end = 0;
  for (const [start, after] of alignment ? wordsOf(translation, shown.to) : []) {
    const word = document.createElement("span");
    word.className = "word";
    word.textContent = translation.slice(start, after);
    Object.assign(word, { line, place: [start, after] });
    block.append(translation.slice(end, start), word);
    end = after;
  }
  block.append(translation.slice(end));
  return block;
}

function translationText() {
  return shown.lines.map((line) => line.choices[line.chosen].translation).join("\n");
}

function level(confidence) {
  return confidence < 0.4 ? "low" : confidence < 0.6 ? "medium" : "high";
}

function showConfidence() {
  const all = (shown?.lines ?? []).map((line) => line.choices[line.chosen]);
  const found = all.filter((one) => one.translation && typeof one.confidence === "number").map((one) => one.confidence);
  const ends = [...new Set([Math.min(...found), Math.max(...found)])].filter(Number.isFinite);
  const parts = ends.map((confidence) => {
    const part = document.createElement("span");
    part.textContent = `${confidence.toFixed(2)} (${level(confidence)})`;
    part.dataset.confidence = level(confidence);
    return part;
  });
  ui.confidence.hidden = !parts.length;
  ui.confidence.replaceChildren("Confidence: ", ...parts.flatMap((part, number) => (number ? [" to ", part] : [part])));
}

function showAlternatives(line) {
  const choices = line?.choices ?? [];
  const take = (number) => () => {
    line.chosen = number;
    render();
    showAlternatives(line);
    keep();
  };
  const all = choices.map((one, number) => item([one.translation], shown.to, take(number)));
  const which = shown?.lines.length > 1 ? `To “${line.source}”; click a line for its own` : "";
  ui.alternativesTo.textContent = choices.length > 1 ? which : "None";
  ui.alternativesList.replaceChildren(...all.filter((_, number) => number !== line.chosen));
}

function item(texts, language, chosen) {
  const button = document.createElement("button");
  button.type = "button";
  button.onclick = chosen;
  for (const text of texts) {
    const part = document.createElement("span");
    part.textContent = text;
    direct(part, language);
    button.append(part);
  }
  const entry = document.createElement("li");
  entry.append(button);
  return entry;
}

// --- which source words became a word ------------------------------------------------------------------------------

function segmenterOf(language) {
  if (!segmenters.has(language)) {
    let found;
    try {
      found = new Intl.Segmenter(language.replace("_", "-"), { granularity: "word" });
    } catch {
      found = new Intl.Segmenter("en", { granularity: "word" }); // the model's name for it is not a code
    }
    segmenters.set(language, found);
  }
  return segmenters.get(language);
}

/** Return where the words of a text start and end; its white space is in none. */
function wordsOf(text, language) {
  const parts = [...segmenterOf(language).segment(text)].filter((part) => part.segment.trim());
  return parts.map((part) => [part.index, part.index + part.segment.length]);
}

/** Return where each token stands in a text. Those that are not in it as they are (<unk>, bytes) share a gap. */
function placesOf(tokens, text) {
  const lower = text.toLowerCase();
  const spaced = ` ${lower.length === text.length ? lower : text}`.replace(/\s/g, " ");
  const subwords = tokens.some((token) => token.startsWith("\u2581")); // U+2581 stands for a space, U+FFED for none
  const places = [];
  let end = 0;
  let waiting = [];
  const settle = (start) => {
    for (const place of waiting) places[place] = [end, start];
    waiting = [];
  };
  tokens.forEach((token, place) => {
    const surface = token.replace(/^[\u2581\uffed]/, "").toLowerCase();
    const space = token.startsWith("\u2581") || !(subwords || token.startsWith("\uffed")) ? 1 : 0;
    const start = surface ? spaced.indexOf(" ".repeat(space) + surface, end + 1 - space) + space - 1 : -1;
    const near = start >= end && (waiting.length || !text.slice(end, start).trim());
    if (!near) return waiting.push(place);
    settle(start);
    end = start + surface.length;
    return (places[place] = [start, end]);
  });
  settle(text.length);
  return places;
}

function touch(one, other) {
  return one[0] < other[1] && other[0] < one[1];
}

/** Return where the source words of a word of the translation stand in their line. */
function sourcesOf({ line, place }) {
  const { tokens, translation, alignment } = line.choices[line.chosen];
  line.places ??= placesOf(line.sourceTokens, line.source);
  line.words ??= wordsOf(line.source, shown.from);
  const own = (line.choices[line.chosen].places ??= placesOf(tokens, translation));
  const sources = alignment.filter(([, token]) => touch(own[token], place)).map(([source]) => line.places[source]);
  return line.words.filter((word) => sources.some((one) => one && touch(one, word)));
}

function point(word) {
  current?.classList.remove("current");
  current = shown && word && ui.source.value === shown.text ? word : null;
  current?.classList.add("current");
  const sources = current ? sourcesOf(current) : [];
  mark(sources.map(([start, end]) => [current.line.start + start, current.line.start + end]));
  return sources.map(([start, end]) => current.line.source.slice(start, end));
}

/** Mark parts of the source, in the text behind the field. */
function mark(places) {
  const text = ui.source.value;
  const parts = document.createDocumentFragment();
  let after = 0;
  for (const [start, end] of places) {
    const marked = document.createElement("mark");
    marked.textContent = text.slice(start, end);
    parts.append(text.slice(after, start), marked);
    after = end;
  }
  parts.append(`${text.slice(after)}\n`);
  ui.mirror.replaceChildren(parts);
}

function arrow(event) {
  const forward = getComputedStyle(ui.translation.firstChild ?? ui.translation).direction === "rtl" ? "Left" : "Right";
  if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  event.preventDefault();
  const words = [...ui.translation.querySelectorAll(".word")];
  const step = event.key === `Arrow${forward}` ? 1 : -1;
  const place = current ? words.indexOf(current) + step : step > 0 ? 0 : words.length - 1;
  const sources = point(words[Math.max(0, Math.min(place, words.length - 1))] ?? null);
  current?.scrollIntoView({ block: "nearest" });
  if (!current) return;
  say(`${current.textContent}: ${sources.join(" ") || "no source word"}`);
  showAlternatives(current.line);
}

// --- history, copying, suggesting, files ---------------------------------------------------------------------------

function keep() {
  clearTimeout(settling);
  const { history } = remembered();
  if (!ui.keep.checked || !shown || shown.text.length > LONGEST_KEPT) return;
  const entry = { text: shown.text, translation: translationText(), from: ui.from.value, to: shown.to };
  const isLess = (one, place) => (place ? one.text === entry.text : entry.text.startsWith(one.text)); // typed further
  const others = history.filter((one, place) => one.to !== entry.to || !isLess(one, place));
  remember({ history: [entry, ...others].slice(0, MOST_KEPT) });
  showHistory();
}

function showHistory() {
  const { history } = remembered();
  ui.forget.disabled = !history.length;
  ui.pastList.replaceChildren(...history.map(({ text, translation, from, to }) => {
    return item([text, translation], "auto", () => {
      ui.source.value = text;
      if (choose(ui.from, from)) fillTargets();
      choose(ui.to, to);
      changed();
      ui.source.focus();
    });
  }));
}

async function copy() {
  keep();
  try {
    await navigator.clipboard.writeText(translationText());
  } catch { // only pages that came by HTTPS, or from this machine, may write to it
    getSelection().selectAllChildren(ui.translation);
    document.execCommand("copy");
  }
  say("Copied");
}

function suggest() {
  ui.suggestingSource.textContent = shown.text;
  ui.better.value = translationText();
  direct(ui.better, shown.to);
  ui.suggestingStatus.textContent = "";
  ui.suggesting.showModal();
}

/** Send each line that was changed, with its source, as a pair of its own. */
async function send() {
  const better = ui.better.value.split("\n");
  const before = shown.lines.map((line) => line.choices[line.chosen].translation);
  const languages = { source: shown.from, target: shown.to };
  const pairs = shown.lines.map((line, number) => ({ q: line.source, s: better[number], ...languages }));
  const changes = pairs.filter(({ q, s }, number) => q.trim() && s?.trim() && s !== before[number]);
  try {
    if (better.length !== before.length) throw new Problem(`Keep it in ${before.length} lines, as the source is`);
    if (!changes.length) throw new Problem("Nothing was changed yet");
    for (const pair of changes) await ask("suggest", pair);
    ui.suggesting.close();
    say("Thank you: the suggestion was sent");
  } catch (problem) {
    ui.suggestingStatus.textContent = problem.message;
  }
}

async function translateFile(file) {
  const formats = settings.supportedFilesFormat ?? [];
  const [, base, suffix] = /^(.*?)(\.[^.]*)?$/s.exec(file.name);
  ui.done.hidden = true;
  if (!formats.includes((suffix ?? "").toLowerCase())) {
    return say(`${file.name} cannot be translated; these can: ${formats.join(", ")}`, true);
  }
  const form = new FormData();
  form.append("source", ui.from.value);
  form.append("target", ui.to.value);
  form.append("file", file);
  say(`Translating ${file.name} …`);
  try {
    const { translatedFileUrl } = await ask("translate_file", form);
    const content = await ask(`download_file/${translatedFileUrl.split("/").at(-1)}`);
    URL.revokeObjectURL(ui.download.href);
    ui.download.href = URL.createObjectURL(content);
    ui.download.download = ui.download.textContent = `${base}.${ui.to.value}${suffix}`;
    ui.done.hidden = false;
    return say(`${file.name} is translated:`);
  } catch (problem) {
    return say(`${file.name}: ${problem.message}`, true);
  }
}

// --- events --------------------------------------------------------------------------------------------------------

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  ui.theme.ariaPressed = String(isDark());
}

function dragged(event) {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  document.querySelector("main").classList.toggle("dropping", event.type === "dragover");
  if (event.type === "drop") [...event.dataTransfer.files].slice(0, 1).forEach(translateFile);
}

ui.theme.onclick = () => {
  setTheme(isDark() ? "light" : "dark");
  remember({ theme: document.documentElement.dataset.theme });
};
ui.keyForm.onsubmit = (event) => {
  event.preventDefault();
  key = ui.key.value;
  allowed(() => sessionStorage.setItem("tfm key", key));
  translate();
};
ui.from.onchange = () => {
  fillTargets();
  changed();
};
ui.to.onchange = ui.glossary.onchange = changed;
ui.swap.onclick = swap;
ui.source.oninput = typed;
ui.source.onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate();
};
ui.clear.onclick = () => {
  ui.source.value = "";
  changed();
  ui.source.focus();
};
ui.translation.onpointerover = (event) => point(event.target.closest(".word"));
ui.translation.onpointerleave = ui.translation.onblur = () => point(null);
ui.translation.onclick = (event) => {
  const word = event.target.closest(".word");
  if (word) showAlternatives(word.line);
};
ui.translation.onkeydown = arrow;
ui.alternatives.ontoggle = () => ui.alternatives.open && shown && translate();
ui.copy.onclick = copy;
ui.suggest.onclick = suggest;
ui.send.onclick = send;
ui.cancel.onclick = () => ui.suggesting.close();
ui.keep.onchange = () => remember({ keep: ui.keep.checked });
ui.forget.onclick = () => {
  remember({ history: [] });
  showHistory();
};
ui.file.onclick = () => ui.upload.click();
ui.upload.onchange = () => {
  [...ui.upload.files].forEach(translateFile);
  ui.upload.value = "";
};
for (const type of ["dragover", "dragleave", "drop"]) addEventListener(type, dragged);
addEventListener("online", translate);
matchMedia("(prefers-color-scheme: dark)").onchange = () => setTheme();

key = allowed(() => sessionStorage.getItem("tfm key")) ?? "";
setTheme(remembered().theme);
ui.keep.checked = remembered().keep ?? true;
showHistory();
mark([]);
translate();
