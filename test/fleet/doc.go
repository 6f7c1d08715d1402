// Package fleet runs processes of the real binary for the programs that measure
// and disturb them (test/chaos, test/planes, test/soak): it starts roles on
// loopback, stops, kills and pauses them, sends them requests whose answers are
// known, and reads what they say of themselves.
//
// Nothing here knows the product's inside: processes are reached as users reach
// them, by flags, signals and HTTP.
package fleet
