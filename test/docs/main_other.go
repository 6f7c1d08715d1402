//go:build !linux

// Command docs runs the command blocks of the documents; it needs Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "docs: this runs on Linux only")
	os.Exit(1)
}
