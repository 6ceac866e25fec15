(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const remembered = (() => {
    try { return localStorage.getItem("saccade-theme"); } catch { return null; }
  })();
  if (remembered === "light" || remembered === "dark") root.dataset.theme = remembered;
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("saccade-theme", root.dataset.theme); } catch { /* storage is blocked */ }
  });

  const valueOf = (row, place) => {
    const text = row.cells[place].dataset.value;
    if (text === undefined) return null;
    return text.trim() !== "" && isFinite(text) ? Number(text) : text;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.textContent = head.textContent;
      head.replaceChildren(sorter);
      sorter.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row) => [valueOf(row, place), row]);
        const known = rows.filter(([value]) => value !== null);
        known.sort(([a], [b]) => (down ? -1 : 1) * compare(a, b));
        const unknown = rows.filter(([value]) => value === null);
        body.append(...[...known, ...unknown].map(([, row]) => row));
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
      });
    });
  }
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
})();
