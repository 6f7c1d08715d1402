// What runs the checks of the scripts in JavaScript and says how they went.

// Report runs checks, prints a line for each, and knows how many failed.
export class Report {
  passed = 0;
  failed = 0;

  async check(name, f, ...args) {
    try {
      await f(...args);
      this.passed++;
      console.log(`ok    ${name}`);
    } catch (e) {
      this.failed++;
      const at = (e.stack ?? "").split("\n").filter((l) => l.includes(".mjs:") && !l.includes("node_modules")).map((l) => l.replace(/.*\//, "").replace(")", ""));
      console.log(`FAIL  ${name}: ${e.constructor.name}: ${String(e.message).slice(0, 900).replaceAll("\n", "\n      ")}  (${at.join(" < ")})`);
    }
  }

  end(client) {
    console.log(`${client}: ${this.passed} checks passed, ${this.failed} failed`);
    process.exit(this.failed ? 1 : 0);
  }
}
