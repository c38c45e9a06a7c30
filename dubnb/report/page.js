"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const numeric = !head.classList.contains("text");
      const first = numeric ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort");
      const next = now === first ? (first === "ascending" ? "descending" : "ascending") : first;
      const sign = next === "ascending" ? 1 : -1;
      const read = (row) => row.cells[column].dataset.value ?? "";
      const compare = (one, other) => {
        const a = read(one), b = read(other);
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en"));
      };
      heads.forEach((each) => each.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", next);
      for (const body of table.tBodies) {  // one for each group of rows; its heading stays first
        body.append(...[...body.rows].filter((row) => !row.classList.contains("group")).sort(compare));
      }
    });
  });
}
for (const frame of document.querySelectorAll(".frame")) {
  const scroll = frame.querySelector(".scroll");
  const look = () => {
    const hidden = scroll.scrollWidth - scroll.clientWidth;
    frame.classList.toggle("wider", hidden > 1);
    frame.classList.toggle("more", hidden - scroll.scrollLeft > 1);
  };
  scroll.addEventListener("scroll", look, { passive: true });
  addEventListener("resize", look);
  look();
}
