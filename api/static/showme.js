// "Show me": half a minute of DPC on the query that is shown, told step by step. It cuts a stream, heals it, raises X, and cuts it
// again; in the end, or when it is stopped, X is what it was.
import { call, said, seconds, tell } from "./api.js";
import { html, useEffect, useRef, useState } from "./vendor.js";

const SHORT = "3s", LONG = "9s", CUT_S = 4;

// Each step: what is said, what is done when it begins, and when it is over. `c`: what the page shows now; `c.at`: ms since the
// step began; `c.first`: what the page showed when it began.
function steps(name, stream, old, change) {
  const fault = (text) => call("POST", "chaos", { body: { fault: text } });
  const setX = (x) => change({ delay_threshold: x });
  return [
    { say: () => "All inputs are there, and every result is final.", begin: () => setX(SHORT), over: (c) => c.at > 2500 && c.x === 3000 && !c.missing.size },
    { say: () => `✂ We cut ${stream}. Results that need it wait for it: the countdown above says how long they may.`, begin: () => fault(`cut ${name}.${stream} for 60s`), over: (c) => c.outstanding > 0 },
    { say: () => `Before X of ${seconds(3000)} was over, results came without ${stream}: amber, with a ?, since they may be taken back.`, over: (c) => c.at > 5000 },
    { say: () => `${stream} is back. What was computed without it is computed again.`, begin: () => fault(`heal ${name}.${stream}`), over: (c) => c.outstanding === 0 && c.undone > c.first.undone },
    { say: (c) => `${c.undone - c.before} amber results are struck through, and stable ones stand in their place. No stable result was changed.`, over: (c) => c.at > 6000 },
    { say: () => `Now X is ${seconds(9000)}: results may wait longer.`, begin: () => setX(LONG), over: (c) => c.at > 2500 && c.x === 9000 },
    { say: () => `✂ The same cut, for ${CUT_S} s. Results wait for ${stream}, and it is back before X is over.`, begin: () => fault(`cut ${name}.${stream} for ${CUT_S}s`), over: (c) => c.at > CUT_S * 1000 + 1500 && !c.missing.size && c.outstanding === 0 },
    { say: (c) => (c.tentative === c.first.tentative0 ? "Nothing became amber: the failure was shorter than X, and nobody has noticed it. " : "")
        + `That is DPC: every answer within X, and every answer right in the end. X is ${old} again.`, begin: () => setX(old), over: () => false },
  ];
}

export function ShowMe({ name, query, status, missing, change }) {
  const [step, setStep] = useState(null);
  const tale = useRef(null);
  const stream = status.inputs.length ? status.inputs[Math.min(1, status.inputs.length - 1)].name : null;
  const now = { x: status.x_ms, missing, outstanding: status.tentative.outstanding, undone: status.counts.undone, tentative: status.counts.tentative };
  const begin = (number) => {
    const { list } = tale.current;
    if (number === 3) tale.current.before = now.undone;
    if (number === 6) tale.current.tentative0 = now.tentative;
    tale.current.first = { ...now, tentative0: tale.current.tentative0 };
    tale.current.begun = Date.now();
    setStep(number);
    Promise.resolve(list[number].begin && list[number].begin()).catch((error) => { tell(error); stop(); });
  };
  const start = () => {
    tale.current = { list: steps(name, stream, query.delay_threshold, change), old: query.delay_threshold };
    begin(0);
  };
  const stop = async () => {
    setStep(null);
    const { old } = tale.current;
    await call("POST", "chaos", { body: { fault: `heal ${name}.${stream}` } }).catch(() => {});
    await change({ delay_threshold: old });
  };
  const context = step === null ? null : { ...now, at: Date.now() - tale.current.begun, first: tale.current.first, before: tale.current.before };
  useEffect(() => {
    if (step !== null && tale.current.list[step].over(context)) begin(step + 1);
  });
  const text = step === null ? "" : tale.current.list[step].say(context);
  useEffect(() => { if (text) said.value = text; }, [text]);
  if (!stream) return null;
  if (step === null) return html`<button class="primary" onClick=${start}>▶ Show me</button>`;
  const last = tale.current.list.length - 1;
  return html`<div class="card tale"><p><strong>${step + 1} of ${last + 1}</strong> ${text}</p>
    ${step === last ? html`<button onClick=${() => setStep(null)}>Close</button>` : html`<button onClick=${stop}>Stop</button>`}</div>`;
}
