// Package fleet runs processes of the real binary for the programs which measure and disturb them
// (test/chaos, test/planes, test/soak): it starts roles on loopback, stops, kills and pauses them, sends them
// requests with known responses, and reads their metrics and state.
//
// It does not use the product's packages: processes are reached as users reach them, by flags, signals and
// HTTP.
package fleet
