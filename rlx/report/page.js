"use strict";
// The page of a report: tables that sort and filter, and charts that plotly draws from the JSON above.
// Text from runs is set as text; where plotly would read markup in it, it is escaped.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const LIGHT = ["#2b5fd9", "#d2691e", "#1c8a5f", "#b0307a", "#7a5af0", "#008ba3", "#c0392b", "#6b7a1a", "#8d5a3b", "#4a5568"];
  const DARK = ["#86aaff", "#f2a25c", "#5fcf9e", "#f08cc0", "#b7a3ff", "#4fcbe0", "#ff8d80", "#c3d15a", "#d0a080", "#a8b3c2"];
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const element = (tag, text, attributes = {}) => {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, length = 46) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
  const labels = (texts, length) => { // of an axis: short, escaped, and no two the same
    const seen = new Map();
    return texts.map((text) => {
      const cut = short(text, length);
      seen.set(cut, (seen.get(cut) || 0) + 1);
      return escaped(seen.get(cut) > 1 ? `${cut} (${seen.get(cut)})` : cut);
    });
  };
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (i) => (dark.matches ? DARK : LIGHT)[i % LIGHT.length];
  const faded = (i, opacity) => {
    const value = parseInt(color(i).slice(1), 16);
    return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${opacity})`;
  };
  const dash = (i) => DASHES[Math.floor(i / LIGHT.length) % DASHES.length];
  const array = (number) => data.arrays[number];

  // -- what is chosen, kept over a refresh ------------------------------------------------------------------------
  const key = `rlx report ${document.title}`;
  const many = data.methods.length > 12;
  const leaders = data.comparison ? data.comparison.methods.slice(0, 8) : data.methods.map((_, i) => i).slice(0, 8);
  const chosen = {
    metric: "eval/return_mean" in data.curves ? "eval/return_mean" : Object.keys(data.curves)[0],
    axis: Object.keys(data.axes)[0], statistic: "iqm", facet: "", seeds: false, sort: {}, filter: "", states: [],
    hidden: many ? data.methods.map((_, i) => i).filter((i) => !leaders.includes(i)) : [],
  };
  if (data.watch) {
    try { Object.assign(chosen, JSON.parse(sessionStorage.getItem(key) || "{}")); } catch { /* nothing was kept */ }
    if (!(chosen.metric in data.curves)) chosen.metric = Object.keys(data.curves)[0];
  }
  const keep = () => { if (data.watch) sessionStorage.setItem(key, JSON.stringify(chosen)); };

  // -- tables -----------------------------------------------------------------------------------------------------
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    if (cell.classList.contains("n")) return cell.dataset.value ? Number(cell.dataset.value) : null;
    return cell.textContent.trim().toLowerCase();
  };
  const sortBy = (table, column, direction) => {
    const body = table.tBodies[0];
    body.querySelectorAll(".detail").forEach((row) => row.remove());
    body.querySelectorAll("[aria-expanded=true]").forEach((button) => button.setAttribute("aria-expanded", "false"));
    const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // what has no value comes last
      return direction * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    });
    body.append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((cell, i) => {
      if (i === column) cell.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.tabIndex = 0;
      const sort = () => {
        const down = cell.getAttribute("aria-sort") === "descending";
        const first = cell.classList.contains("n") ? -1 : 1;
        const direction = cell.hasAttribute("aria-sort") ? (down ? 1 : -1) : first;
        chosen.sort[table.id] = [column, direction];
        sortBy(table, column, direction);
        keep();
      };
      cell.addEventListener("click", sort);
      cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
    if (chosen.sort[table.id]) sortBy(table, ...chosen.sort[table.id]);
  }

  const runTable = byId("run-table");
  const stateButtons = [...byId("state-filter").children];
  const texts = new Map([...runTable.tBodies[0].rows].map((row) =>
    [row, `${row.textContent} ${data.runs[row.dataset.run].reason}`.toLowerCase()]));
  const applyFilter = () => {
    runTable.querySelectorAll(".detail").forEach((row) => row.remove());
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const off = stateButtons.filter((b) => b.getAttribute("aria-pressed") === "false").map((b) => b.dataset.state);
    let count = 0;
    for (const [row, text] of texts) {
      row.hidden = off.includes(row.dataset.state) || !words.every((word) => text.includes(word));
      count += !row.hidden;
    }
    byId("shown").textContent = count === texts.size ? "" : `${count} of ${texts.size} shown`;
    chosen.filter = byId("filter").value;
    chosen.states = off;
    keep();
  };
  byId("filter").value = chosen.filter;
  byId("filter").addEventListener("input", applyFilter);
  for (const button of stateButtons) {
    if (chosen.states.includes(button.dataset.state)) button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false");
      applyFilter();
    });
  }
  applyFilter();

  const detailOf = (run) => {
    const cell = element("td", null, { colspan: 10 });
    if (run.reason) cell.append(element("p", run.reason));
    for (const note of run.notes) cell.append(element("p", note, { class: "note" }));
    if (run.command) cell.append(element("pre", run.command, { class: "command" }));
    const pairs = Object.entries(run.differs);
    if (pairs.length) {
      cell.append(element("p", "Its config, where it differs from that of most runs:", { class: "quiet" }));
      const table = element("table", null, { class: "plain" });
      for (const [name, value] of pairs) {
        const row = table.insertRow();
        row.append(element("td", name), element("td", value === null ? "not set" : value));
      }
      cell.append(table);
    }
    if (run.log.length) cell.append(element("pre", run.log.join("\n")));
    const row = element("tr", null, { class: "detail" });
    row.append(cell);
    return row;
  };
  runTable.tBodies[0].addEventListener("click", (event) => {
    const button = event.target.closest("button.link");
    if (!button) return;
    const row = button.closest("tr");
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) row.nextElementSibling.remove();
    else row.after(detailOf(data.runs[row.dataset.run]));
  });

  // -- the difference of two runs ---------------------------------------------------------------------------------
  const readable = data.runs.map((run, i) => [run, i]).filter(([run]) => run.read);
  for (const [select, first] of [[byId("left"), 0], [byId("right"), readable.length - 1]]) {
    for (const [run, i] of readable) select.append(element("option", run.name, { value: i }));
    if (readable.length) select.value = readable[first][1];
    select.addEventListener("change", () => showDifference());
  }
  const showDifference = () => {
    const runs = ["left", "right"].map((id) => data.runs[byId(id).value]);
    const table = byId("diff");
    table.tBodies[0].replaceChildren();
    if (runs.some((run) => !run)) return;
    const config = (run, name) => (name in run.differs ? run.differs[name] : data.config[name] ?? null);
    const names = new Set(runs.flatMap((run) => Object.keys(run.differs)));
    runs.forEach((run, i) => { table.tHead.rows[0].cells[i + 1].textContent = run.name; });
    for (const name of [...names].sort()) {
      const values = runs.map((run) => config(run, name));
      if (values[0] === values[1]) continue;
      const row = table.tBodies[0].insertRow();
      row.append(element("td", name), ...values.map((value) => element("td", value === null ? "not set" : value)));
    }
    if (!table.tBodies[0].rows.length) {
      table.tBodies[0].insertRow().append(element("td", "Their configs are the same.", { colspan: 3 }));
    }
  };
  showDifference();

  // -- charts -----------------------------------------------------------------------------------------------------
  const library = (async () => {
    const packed = atob(byId("library").textContent.trim());
    const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).blob();
    const script = document.createElement("script");
    script.src = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    await new Promise((resolve, reject) => { script.onload = resolve; script.onerror = reject; document.head.append(script); });
    URL.revokeObjectURL(script.src);
  })();
  library.catch(() => { byId("curve-note").textContent = "The charts cannot be drawn: this browser is too old."; });

  const axisStyle = (more = {}) => ({
    gridcolor: variable("--grid"), linecolor: variable("--line"), zeroline: false, automargin: true, ...more,
  });
  const namesAxis = (more = {}) => axisStyle({ type: "category", autorange: "reversed", dtick: 1, ...more });
  const layout = (more) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, showlegend: false,
    font: { family: "system-ui, sans-serif", size: 12, color: variable("--ink") },
    margin: { l: 52, r: 14, t: 26, b: 44 }, height: 320, hovermode: "closest",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: variable("--quiet"), activecolor: variable("--accent") },
    hoverlabel: { bgcolor: variable("--surface"), bordercolor: variable("--line"), font: { color: variable("--ink") } },
    ...more,
  });
  const config = {
    displaylogo: false, responsive: true, displayModeBar: "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // none that sends anything anywhere
    toImageButtonOptions: { format: "svg" },
  };
  const bandOf = (x, low, high, i) => ({
    x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: faded(i, 0.16),
    line: { width: 0 }, mode: "lines", hoverinfo: "skip", type: "scatter",
  });
  const draws = new Map(); // element to the function that draws it
  const seen = new WeakSet();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && !seen.has(target)) { seen.add(target); drawNow(target); }
    }
  }, { rootMargin: "200px" });
  const drawNow = async (target) => {
    await library;
    const figure = draws.get(target)?.();
    if (figure) {
      const made = layout(figure[1]);
      target.style.minHeight = `${made.height}px`;
      await Plotly.react(target, figure[0], made, config);
    }
    target.dataset.drawn = "true";
  };
  const chart = (target, draw) => {
    draws.set(target, draw);
    if (seen.has(target)) drawNow(target); else watcher.observe(target);
  };
  const redraw = () => { for (const target of draws.keys()) if (seen.has(target)) drawNow(target); };
  dark.addEventListener("change", () => { paintChips(); redraw(); });

  // curves
  const options = (select, pairs, value) => {
    select.replaceChildren(...pairs.map(([name, label]) => element("option", label, { value: name })));
    select.value = value;
  };
  const visible = (group) => !chosen.hidden.includes(group.method);
  const facetsOf = () => {
    const values = chosen.facet ? [...new Set(data.methods.map((m) => m.choices[chosen.facet]))] : [null];
    const facets = [];
    for (const [env, name] of data.envs.entries()) {
      for (const value of values) {
        const groups = data.groups.map((group, i) => [group, i]).filter(([group]) => group.env === env
          && (value === null || data.methods[group.method].choices[chosen.facet] === value));
        if (groups.length) facets.push({ title: value === null ? name : `${name} · ${value}`, groups });
      }
    }
    return facets;
  };
  const curveTraces = (groups) => {
    const curves = data.curves[chosen.metric];
    const traces = [];
    for (const [group, index] of groups.filter(([g]) => visible(g))) {
      const m = group.method;
      const name = escaped(data.methods[m].label);
      const bands = curves.groups[index]?.[chosen.axis];
      const band = bands?.[chosen.statistic] || bands?.mean;
      if (band) {
        const [x, value, low, high, runs] = band.map(array);
        if (Math.max(...runs) > 1) traces.push(bandOf(x, low, high, m));
        traces.push({
          x, y: value, name, customdata: x.map((_, i) => [low[i], high[i], runs[i]]), type: "scatter",
          mode: x.length < 2 ? "markers" : "lines", line: { color: color(m), width: 2.2, dash: dash(m) },
          marker: { color: color(m) }, meta: m,
          hovertemplate: "<b>%{fullData.name}</b><br>%{x:,} : %{y:,.4~g}<br>[%{customdata[0]:,.4~g}, "
            + "%{customdata[1]:,.4~g}] over %{customdata[2]} run(s)<extra></extra>",
        });
      }
      if (chosen.seeds) {
        for (const i of group.runs) {
          const line = curves.runs[i]?.[chosen.axis];
          if (!line || !line.length) continue;
          traces.push({
            x: array(line[0]), y: array(line[1]), name: escaped(data.runs[i].name), type: "scatter", mode: "lines",
            line: { color: faded(m, 0.45), width: 1 }, hovertemplate: "%{fullData.name}<br>%{x:,} : %{y:,.4~g}<extra></extra>",
          });
        }
      }
    }
    return traces;
  };
  const drawCurves = () => {
    const place = byId("charts");
    for (const target of place.querySelectorAll(".chart")) { draws.delete(target); watcher.unobserve(target); }
    place.replaceChildren();
    if (!chosen.metric) {
      place.append(element("p", "No run has written a metric yet.", { class: "quiet" }));
      return;
    }
    for (const facet of facetsOf()) {
      const figure = element("figure");
      const target = element("div", null, { class: "chart" });
      figure.append(element("figcaption", facet.title), target);
      place.append(figure);
      chart(target, () => [curveTraces(facet.groups), {
        xaxis: axisStyle({ title: { text: data.axes[chosen.axis] }, rangemode: "tozero" }),
        yaxis: axisStyle({ title: { text: escaped(chosen.metric) } }),
      }]);
    }
    const notes = ["Bands are 95 % bootstrap intervals over seeds; runs count as far as they went."];
    if (chosen.statistic === "iqm" && !chosen.metric.startsWith("eval/")) notes.push("This metric is drawn as a mean.");
    if (data.thinned) notes.push(`Curves are thinned: this one to at most ${data.points[chosen.metric]} points each, evenly spaced.`);
    if (data.dropped.length) notes.push(`Left out to keep the page small: ${data.dropped.join(", ")}.`);
    const offline = chosen.axis === "env_steps" && data.groups.some((g, i) => {
      const band = data.curves[chosen.metric].groups[i];
      return band?.env_steps && band?.updates && JSON.stringify(band.env_steps.mean) === JSON.stringify(band.updates.mean);
    });
    if (offline) notes.push("Runs without env steps are drawn over their updates.");
    byId("curve-note").textContent = notes.join(" ");
    keep();
  };
  const chips = [];
  const paintChips = () => chips.forEach((chip, i) => {
    chip.firstChild.style.background = color(i);
    chip.setAttribute("aria-pressed", String(!chosen.hidden.includes(i)));
  });
  const toggled = () => { paintChips(); redraw(); keep(); };
  data.methods.forEach((method, i) => {
    const chip = element("button", null, { type: "button", title: Object.entries(method.choices).map((p) => p.join("=")).join(", ") });
    chip.append(element("i"), method.label);
    chip.addEventListener("click", () => {
      chosen.hidden = chosen.hidden.includes(i) ? chosen.hidden.filter((h) => h !== i) : [...chosen.hidden, i];
      toggled();
    });
    chips.push(chip);
    byId("methods").append(chip);
  });
  if (data.methods.length > 2) {
    for (const [text, hidden] of [["all", []], ["none", data.methods.map((_, i) => i)]]) {
      const button = element("button", text, { type: "button", class: "plain-button" });
      button.addEventListener("click", () => { chosen.hidden = hidden; toggled(); });
      byId("methods").append(button);
    }
  }
  paintChips();
  options(byId("metric"), Object.keys(data.curves).map((name) => [name, name]), chosen.metric);
  options(byId("axis"), Object.entries(data.axes), chosen.axis);
  options(byId("facet"), [["", data.envs.length > 1 ? "environments" : "nothing"], ...data.keys.map((k) => [k, k])], chosen.facet);
  byId("statistic").value = chosen.statistic;
  byId("seeds").checked = chosen.seeds;
  for (const id of ["metric", "axis", "facet", "statistic"]) {
    byId(id).addEventListener("change", (event) => { chosen[id] = event.target.value; drawCurves(); });
  }
  byId("seeds").addEventListener("change", (event) => { chosen.seeds = event.target.checked; drawCurves(); });
  drawCurves();

  // comparison
  const intervals = (figures, names, colors, place) => ({
    x: figures.map(([value]) => value), y: names, type: "scatter", mode: "markers", ...place,
    marker: { size: 9, color: colors },
    error_x: {
      type: "data", symmetric: false, thickness: 2, width: 0, color: variable("--quiet"),
      array: figures.map(([value, , high]) => (high === null ? 0 : high - value)),
      arrayminus: figures.map(([value, low]) => (low === null ? 0 : value - low)),
    },
    customdata: figures.map(([, low, high]) => (low === null ? "one run each" : `[${low.toPrecision(4)}, ${high.toPrecision(4)}]`)),
    hovertemplate: "<b>%{y}</b><br>%{x:,.4~g} %{customdata}<extra></extra>",
  });
  const comparison = data.comparison;
  if (comparison && comparison.methods.length) {
    const methods = comparison.methods;
    const names = labels(methods.map((m) => data.methods[m].label));
    const shown = methods.map((m, i) => [m, i]).filter(([, i]) => i < 12);
    const titles = { iqm: "IQM", median: "median", mean: "mean", gap: "optimality gap (lower is better)" };
    chart(byId("aggregate-chart"), () => {
      const narrow = byId("aggregate-chart").clientWidth < 700;
      const more = { height: Math.max(narrow ? 160 : 220, 26 * methods.length + 80) * (narrow ? 4 : 1), grid: narrow
        ? { rows: 4, columns: 1, pattern: "independent", ygap: 0.35 } : { rows: 1, columns: 4, pattern: "independent", xgap: 0.06 } };
      const traces = Object.keys(titles).map((name, k) => {
        const place = k ? { xaxis: `x${k + 1}`, yaxis: `y${k + 1}` } : {};
        more[k ? `xaxis${k + 1}` : "xaxis"] = axisStyle({ title: { text: titles[name], standoff: 6 } });
        more[k ? `yaxis${k + 1}` : "yaxis"] = namesAxis({ showticklabels: narrow || !k });
        return intervals(comparison.aggregates[name], names, methods.map(color), place);
      });
      return [traces, more];
    });
    const lines = (list) => shown.flatMap(([m, i]) => {
      const { x, value, low, high } = list[i];
      return [...(low ? [bandOf(x, low, high, m)] : []), {
        x, y: value, name: names[i], mode: "lines", type: "scatter", line: { color: color(m), width: 2.2, dash: dash(m) },
        hovertemplate: "<b>%{fullData.name}</b><br>%{x:,.4~g} : %{y:.3f}<extra></extra>",
      }];
    });
    chart(byId("profile-chart"), () => [lines(comparison.profiles), {
      xaxis: axisStyle({ title: { text: "score" } }), yaxis: axisStyle({ title: { text: "share of runs above" }, range: [-0.02, 1.02] }) }]);
    chart(byId("efficiency-chart"), () => [lines(comparison.efficiency), {
      xaxis: axisStyle({ title: { text: data.axes.env_steps || "updates" } }), yaxis: axisStyle({ title: { text: "IQM of the score" } }) }]);
    if (byId("improvement-chart")) chart(byId("improvement-chart"), () => {
      const values = comparison.improvement.map((row) => row.map((e) => (e ? e[0] : null)));
      const text = comparison.improvement.map((row) => row.map((e) => (e ? (e[1] === null ? "one run each" : `[${e[1].toFixed(2)}, ${e[2].toFixed(2)}]`) : "")));
      return [[{
        type: "heatmap", z: values, x: names, y: names, zmin: 0, zmax: 1, customdata: text, xgap: 2, ygap: 2,
        texttemplate: methods.length <= 12 ? "%{z:.2f}" : "", hoverongaps: false,
        colorscale: [[0, color(6)], [0.5, variable("--surface")], [1, color(0)]],
        colorbar: { thickness: 10, outlinewidth: 0, len: 0.9 },
        hovertemplate: "%{y} beats %{x}: <b>%{z:.3f}</b> %{customdata}<extra></extra>",
      }], { height: Math.max(280, 36 * methods.length + 130), xaxis: axisStyle({ type: "category", showgrid: false, tickangle: -30 }), yaxis: namesAxis({ showgrid: false }) }];
    });
  }

  // what mattered
  for (const [name, effects] of Object.entries(data.effects)) {
    if (!effects.length || !byId("effects")) continue;
    const figure = element("figure");
    const target = element("div", null, { class: "chart" });
    figure.append(element("figcaption", name), target);
    byId("effects").append(figure);
    const names = labels(effects.map((e) => e.value));
    chart(target, () => [[intervals(effects.map((e) => e.effect), names, effects.map(() => color(0)), {})], {
      height: Math.max(180, 34 * effects.length + 90),
      xaxis: axisStyle({ title: { text: data.envs.length === 1 ? "difference in return" : "difference in score" }, zeroline: true, zerolinecolor: variable("--quiet") }),
      yaxis: namesAxis(),
    }]);
  }
  for (const search of data.searches) {
    const place = byId("searches");
    place.append(element("h3", `Search: ${search.name}`));
    const add = (title) => {
      const figure = element("figure", null, { class: "wide" });
      const target = element("div", null, { class: "chart" });
      figure.append(element("figcaption", title), target);
      place.append(figure);
      return target;
    };
    if (search.trials.length > 1) {
      const values = search.trials.map((t) => t.value);
      const dimension = (name, values) => {
        const numbers = values.map(Number);
        if (values.every((v, i) => v !== "" && Number.isFinite(numbers[i]))) {
          const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
          if (least <= 0 || most / least < 100) return { label: escaped(name), values: numbers };
          return { label: `log10 ${escaped(name)}`, values: numbers.map(Math.log10) }; // such as learning rates
        }
        const levels = [...new Set(values)];
        return { label: escaped(name), values: values.map((v) => levels.indexOf(v)), tickvals: levels.map((_, i) => i), ticktext: labels(levels, 20) };
      };
      chart(add("Parallel coordinates of all trials"), () => [[{
        type: "parcoords", line: { color: values, colorscale: "Viridis", reversescale: search.direction === "minimize", showscale: true },
        dimensions: [...search.keys.map((k, i) => dimension(k, search.trials.map((t) => t.choices[i]))), { label: escaped(search.objective), values }],
      }], { height: 380, margin: { l: 80, r: 40, t: 50, b: 30 } }]);
    }
    const weights = Object.entries(search.importance).sort((a, b) => b[1] - a[1]);
    if (weights.length) {
      chart(add("Importance of each choice"), () => [[{
        type: "bar", orientation: "h", x: weights.map((w) => w[1]), y: labels(weights.map((w) => w[0])), marker: { color: color(0) },
      }], { height: Math.max(180, 30 * weights.length + 80), xaxis: axisStyle(), yaxis: namesAxis() }]);
    }
  }

  // -- while a sweep runs -----------------------------------------------------------------------------------------
  if (data.watch) {
    byId("live").hidden = false;
    setInterval(async () => {
      try {
        const stamp = await (await fetch("stamp", { cache: "no-store" })).text();
        if (stamp !== data.watch) { keep(); location.reload(); }
      } catch { byId("live").textContent = "no longer updated"; }
    }, 2000);
  }
})();
