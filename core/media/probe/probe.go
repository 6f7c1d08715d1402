// Package probe reads how large pictures and sounds are from the first bytes of their
// files.
package probe
