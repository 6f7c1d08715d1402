// Package interop holds a running Penstock against the official clients of the
// APIs it speaks. It is a module of its own, so that those clients stay out of
// the product's dependencies. run.sh installs what they need, starts "penstock up"
// and test/recorded, and runs all of them:
//
//   - openai-go, in this directory,
//   - openai and anthropic for Python, in python,
//   - openai for JavaScript, in js.
//
// browser.sh, which run.sh calls last and which runs alone too, opens the HTML reports
// of replay and bench in a headless Chromium, with playwright-core, in browser.
//
// zmtp.sh, likewise, holds our ZeroMQ sockets against libzmq, in zmtp.
//
// vllmtests/run.sh, likewise, runs vLLM's own tests of its parsers of answers against
// ours: the test files of its source distribution, in front of stand-ins for vLLM.
//
// The recordings are what test/recorded plays: a directory for each model, NAME.txt
// with what it writes and NAME.json with what every client must make of it, in
// every API. All scripts read the latter; tools.json and schema.json are what their
// requests ask for.
package interop
