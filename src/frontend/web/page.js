/* page.js - the chat and the live panel of inferd's page. Talks to the same server only: /v1/chat/completions, /v1/models,
 * /ready and /stats. Text of models and servers goes into the page as text nodes, never as markup. */
"use strict";

const $ = id => document.getElementById(id);
const STAGES = ["accept", "parse", "template", "tokenize", "submit", "queue", "prefill", "decode", "deliver"];
const messages = []; /* what the model is told: {role, content} */
let running = null;  /* AbortController of the answer under way */
let answered = 0;

/* --- small helpers --- */

function element(tag, name, text) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text !== undefined) e.textContent = text;
  return e;
}

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 1e-3) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3).replace(/\.0+$/, "")} ms`;
  return seconds < 100 ? `${seconds.toFixed(2)} s` : `${Math.round(seconds)} s`;
}

function count(n) {
  if (!Number.isFinite(n)) return "–";
  return n >= 100 ? Math.round(n).toLocaleString("en") : String(Math.round(n * 10) / 10);
}

const percent = share => Number.isFinite(share) ? `${(share * 100).toFixed(share < .1 ? 1 : 0)} %` : "–";

/* A bar of stages; ms: {stage: number}. Widths go through the style object, which the content policy allows. */
function stageBar(ms) {
  const bar = element("div", "bar"), parts = [];
  const total = STAGES.reduce((sum, s) => sum + (ms[s] || 0), 0) || 1;
  STAGES.forEach((stage, i) => {
    if (!(ms[stage] > 0)) return;
    const part = element("span", `s${i}`);
    part.style.width = `${ms[stage] / total * 100}%`;
    parts.push(`${stage} ${duration(ms[stage] / 1e3)}`);
    bar.append(part);
  });
  bar.title = parts.join(", ");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", parts.join(", ") || "no time spent yet");
  return bar;
}

function stageLegend(ms) {
  const legend = element("div", "legend");
  STAGES.forEach((stage, i) => {
    if (!(ms[stage] > 0)) return;
    const entry = element("span");
    entry.append(element("i", `s${i}`), `${stage} ${duration(ms[stage] / 1e3)}`);
    legend.append(entry);
  });
  return legend;
}

function showFault(text) {
  $("fault").textContent = text || "";
  $("fault").hidden = !text;
}

function headers() {
  const key = $("key").value.trim();
  return key ? {Authorization: `Bearer ${key}`} : {};
}

/* --- the conversation --- */

/* Text with ``` fences as blocks of their own; all else stays as it is. */
function renderText(into, text) {
  into.replaceChildren();
  text.split(/^```[^\n]*\n?/m).forEach((piece, i) => {
    if (i % 2) into.append(element("pre", "", piece.replace(/\n$/, "")));
    else if (piece.trim()) into.append(i ? piece.replace(/^\n+/, "") : piece);
  });
}

function addMessage(role, text) {
  const box = element("article", `message ${role}`), body = element("div", "text");
  box.setAttribute("aria-label", role === "user" ? "You" : "Model");
  renderText(body, text);
  box.append(body);
  $("empty").hidden = true;
  $("log").append(box);
  $("log").scrollTop = $("log").scrollHeight;
  return box;
}

function requestBody() {
  const system = $("system").value.trim(), body = {
    messages: system ? [{role: "system", content: system}, ...messages] : messages.slice(),
    stream: true, stream_options: {include_usage: true}, return_timings: true,
  };
  const number = (id, field) => { if ($(id).value !== "") body[field] = Number($(id).value); };
  number("temperature", "temperature");
  number("top-p", "top_p");
  number("max-tokens", "max_tokens");
  return body;
}

async function faultOf(response) {
  let message = `the server answered ${response.status}`;
  try { message = (await response.json()).error.message || message; } catch { /* no JSON: the status says it */ }
  const wait = response.headers.get("Retry-After");
  if (response.status === 401) { $("settings").open = true; $("key").focus(); }
  return new Error(wait ? `${message} (retry in ${wait} s)` : message);
}

/* Yields the data of each server-sent event. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

/* Reads one answer into `box`; resolves to {text, finish, usage, timings}. */
async function readAnswer(response, box) {
  const answer = {text: "", finish: null}, log = $("log"), body = box.firstChild;
  let due = false;
  const draw = () => {
    const low = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    due = false;
    renderText(body, answer.text);
    if (low) log.scrollTop = log.scrollHeight;
  };
  answer.draw = draw;
  box.answer = answer;
  for await (const data of events(response)) {
    if (data === "[DONE]") { answer.whole = true; break; }
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices && event.choices[0];
    if (choice && choice.delta && choice.delta.content) answer.text += choice.delta.content;
    if (choice && choice.finish_reason) answer.finish = choice.finish_reason;
    if (event.usage) answer.usage = event.usage;
    if (event.timings) answer.timings = event.timings;
    if (!due) { due = true; requestAnimationFrame(draw); }
  }
  draw();
  if (!answer.whole) throw new Error("the connection ended before the answer did");
  return answer;
}

function showTimings(box, answer) {
  const t = answer.timings, usage = answer.usage;
  if (!t || !usage) return;
  const first = STAGES.slice(0, STAGES.indexOf("decode")).reduce((sum, s) => sum + (t.stages_ms[s] || 0), 0);
  const cut = answer.finish === "length" ? " · cut at the token limit" : "";
  box.append(element("p", "meta", `${usage.completion_tokens} tokens · first after ${duration(first / 1e3)} · ` +
    `${count(t.predicted_per_second)} tokens/s · prompt ${usage.prompt_tokens} (${t.cache_n} cached)${cut}`));
  box.append(stageBar(t.stages_ms));
  const row = element("tr");
  [++answered, usage.prompt_tokens, t.cache_n, usage.completion_tokens, count(t.predicted_per_second),
    duration(t.total_ms / 1e3)].forEach(v => row.append(element("td", "", v)));
  const bars = element("tr"), bar = element("td");
  bar.colSpan = 6;
  bar.append(stageBar(t.stages_ms));
  bars.append(bar);
  if (answered === 1) $("answers").replaceChildren();
  $("answers").prepend(row, bars);
  while ($("answers").children.length > 40) $("answers").lastChild.remove();
}

function setRunning(controller) {
  running = controller;
  $("send").textContent = controller ? "Stop" : "Send";
}

async function send() {
  const text = $("prompt").value;
  if (!text.trim()) { $("prompt").focus(); return; }
  showFault("");
  messages.push({role: "user", content: text});
  const question = addMessage("user", text), box = addMessage("assistant", "");
  box.classList.add("busy");
  $("prompt").value = "";
  const controller = new AbortController();
  setRunning(controller);
  try {
    const response = await fetch("v1/chat/completions", {method: "POST", signal: controller.signal,
      headers: {"Content-Type": "application/json", ...headers()}, body: JSON.stringify(requestBody())});
    if (!response.ok) throw await faultOf(response);
    const answer = await readAnswer(response, box);
    messages.push({role: "assistant", content: answer.text});
    showTimings(box, answer);
  } catch (error) {
    const partial = box.answer ? box.answer.text : "";
    if (box.answer) box.answer.draw();
    if (partial) messages.push({role: "assistant", content: partial});
    else { messages.pop(); box.remove(); question.classList.add("failed"); $("prompt").value ||= text; }
    if (controller.signal.aborted) { if (partial) box.append(element("p", "meta", "stopped")); }
    else { if (partial) box.classList.add("failed"); showFault(error instanceof TypeError ? "The server cannot be reached." : error.message); }
  } finally {
    box.classList.remove("busy");
    if (running === controller) setRunning(null);
  }
}

function clearChat() {
  if (running) running.abort();
  messages.length = 0;
  $("log").querySelectorAll(".message").forEach(m => m.remove());
  $("empty").hidden = false;
  showFault("");
  $("prompt").focus();
}

/* --- the live panel --- */

const history = []; /* {time (s), out} of up to two minutes */
const SPAN_S = 120, ENDED_SHOWN = 8, RUNNING_SHOWN = 12;

function drawSpark(now) {
  const points = [];
  let peak = 0;
  for (let i = 1; i < history.length; i++) {
    const dt = history[i].time - history[i - 1].time;
    const rate = Math.max(0, (history[i].out - history[i - 1].out) / dt);
    peak = Math.max(peak, rate);
    points.push([240 - (now - history[i].time) / SPAN_S * 240, rate]);
  }
  const at = ([x, rate]) => `${x.toFixed(1)} ${(46 - (peak ? rate / peak * 42 : 0)).toFixed(1)}`;
  const line = points.map(at).join(" L");
  const [area, stroke] = $("spark").children;
  stroke.setAttribute("d", line ? `M${line}` : "");
  area.setAttribute("d", line ? `M${points[0][0].toFixed(1)} 48 L${line} L${points.at(-1)[0].toFixed(1)} 48 Z` : "");
  $("peak").textContent = peak ? `peak ${count(peak)}` : "";
}

function noteHistory(out) {
  const now = performance.now() / 1e3, before = history.at(-1);
  if (!Number.isFinite(out)) return;
  if (before && out < before.out) history.length = 0; /* the server has been started anew */
  history.push({time: now, out});
  while (history.length > 2 && history[1].time < now - SPAN_S) history.shift();
  drawSpark(now);
}

function requestRow(cells) {
  const row = element("tr");
  cells.forEach(text => row.append(element("td", "", text)));
  return row;
}

/* All that run on the server, and the last that ended, whoever asked. */
function showRequests(running, ended) {
  const rows = running.slice(0, RUNNING_SHOWN).map(r =>
    requestRow([r.id.slice(-5), r.stage, r.prompt_tokens, "", r.completion_tokens, duration(r.age_seconds)]));
  if (running.length > RUNNING_SHOWN) rows.push(requestRow([`and ${running.length - RUNNING_SHOWN} more`, "", "", "", "", ""]));
  for (const r of ended.slice(0, ENDED_SHOWN)) {
    const bars = element("tr"), bar = element("td");
    bar.colSpan = 6;
    bar.append(stageBar(r.stages_ms));
    bars.append(bar);
    rows.push(requestRow([r.id.slice(-5), r.outcome, r.prompt_tokens, r.cached_tokens, r.completion_tokens, duration(r.total_ms / 1e3)]), bars);
  }
  if (!rows.length) rows.push(requestRow(["none yet"]));
  $("requests").replaceChildren(...rows);
}

/* stats: of GET /stats; {}: there is none, all figures are dashes. */
function showStats(stats) {
  const show = (id, value) => { $(id).textContent = value; };
  const {tokens = {}, requests = {}, kv = {}, latency_seconds: latency = {}} = stats;
  const seconds = (what, q) => duration(what?.[q] ?? NaN);
  noteHistory(tokens.generated_total);
  show("rate", count(tokens.generated_per_second));
  show("prompt-rate", count(tokens.prompt_per_second));
  show("ttft-50", seconds(latency.first_token, "p50"));
  show("ttft-99", seconds(latency.first_token, "p99"));
  show("itl-50", seconds(latency.inter_token, "p50"));
  show("itl-99", seconds(latency.inter_token, "p99"));
  show("running", count(requests.running));
  show("waiting", count(requests.waiting));
  show("rejected", count(requests.rejected_total));
  show("kv", percent(kv.usage));
  $("kv-bar").value = kv.usage || 0;
  show("cached", percent(kv.prefix_hit_ratio));
  const stages = Object.fromEntries(STAGES.map(s => [s, (latency.stages?.[s]?.p50 || 0) * 1e3]).filter(([, ms]) => ms > 0));
  if (Object.keys(stages).length) $("stages").replaceChildren(stageBar(stages), stageLegend(stages));
  else $("stages").replaceChildren(element("small", "", "no request has ended in the last 5 s"));
  showRequests(stats.running || [], stats.ended || []);
}

async function pollStats() {
  const response = await fetch("stats", {cache: "no-store", headers: headers()});
  showStats(response.ok ? await response.json() : {});
  if (response.status === 401) $("stages").replaceChildren(element("small", "", "the figures need an API key: Chat, Settings"));
}

function showState(name, text) {
  if ($("state").textContent === text) return; /* a screen reader need not hear it again */
  $("state").className = `pill ${name}`;
  $("state").textContent = text;
}

async function showReady() {
  const response = await fetch("ready", {cache: "no-store"}), body = await response.json();
  if (body.status === "ready") showState("ready", "ready");
  else if (body.status === "error") showState("down", body.reason || "error");
  else {
    const share = body.percent === undefined ? "" : ` ${body.percent} %`;
    showState("wait", body.status + share);
  }
}

async function showModel() {
  if ($("model").dataset.known) return;
  const response = await fetch("v1/models", {headers: headers()});
  if (response.status === 401) $("model").textContent = "needs an API key";
  if (!response.ok) return;
  const model = (await response.json()).data[0];
  $("model").textContent = model.id;
  $("model").title = `${model.id}, context ${model.max_model_len} tokens`;
  $("model").dataset.known = "yes";
  document.title = `${model.id} · inferd`;
}

async function poll() {
  if (!document.hidden) {
    try {
      await showReady();
      await pollStats();
      await showModel();
    } catch { showState("down", "not reachable"); }
  }
  setTimeout(poll, 1000);
}

/* --- wiring --- */

document.addEventListener("DOMContentLoaded", () => {
  $("key").value = sessionStorage.getItem("key") || "";
  $("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); delete $("model").dataset.known; });
  $("composer").addEventListener("submit", event => {
    event.preventDefault();
    if (running) running.abort(); else send();
  });
  $("prompt").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!running) send();
  });
  document.addEventListener("keydown", event => { if (event.key === "Escape" && running) running.abort(); });
  $("clear").addEventListener("click", clearChat);
  for (const button of document.querySelectorAll("[data-show]"))
    button.addEventListener("click", () => {
      document.body.dataset.view = button.dataset.show;
      for (const b of document.querySelectorAll("[data-show]")) b.setAttribute("aria-pressed", String(b === button));
    });
  $("prompt").focus();
  poll();
});
