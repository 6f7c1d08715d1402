package main

import (
	"io"
	"testing"
)

// TestStopWithStdin: the worker stops when its standard input ends, whatever came before.
func TestStopWithStdin(t *testing.T) {
	in, out := io.Pipe()
	ctx, stop := withInput(t.Context(), in)
	defer stop()
	for range 2 { // the second write waits until what the first one wrote has been read
		if _, err := io.WriteString(out, "alive\n"); err != nil {
			t.Fatal(err)
		}
	}
	if ctx.Err() != nil {
		t.Fatal("it stops while its standard input goes on")
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}
