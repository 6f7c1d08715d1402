// Package interop tests a running Penstock with the official clients of its APIs. It is its own module, so
// that those clients stay out of the product's dependencies. run.sh installs what they need, starts "penstock
// up" and test/recorded, and runs all of them:
//
//   - openai-go, in this directory,
//   - openai and anthropic for Python, in python,
//   - openai for JavaScript, in js.
//
// browser.sh, which run.sh calls last and which also runs alone, opens the HTML reports of replay and bench
// in a headless Chromium, with playwright-core, in browser.
//
// zmtp.sh, called in the same way, tests our ZeroMQ sockets with libzmq, in zmtp.
//
// vllmtests/run.sh, also called in the same way, runs vLLM's own tests of its output parsers against ours:
// the test files of its source distribution, in front of stand-ins for vLLM.
//
// The recordings are played by test/recorded: a directory for each model, NAME.txt with its output and
// NAME.json with the expected result of every client, in every API. All scripts read the latter; tools.json
// and schema.json are used in their requests.
package interop
